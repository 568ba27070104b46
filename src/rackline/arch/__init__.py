"""A model and what one token of it costs."""

from rackline.arch.attention import Attention, GroupedQueryAttention, MultiHeadLatentAttention, windowed_pairs
from rackline.arch.build import build_model, model
from rackline.arch.ffn import DenseFfn, MoeFfn
from rackline.arch.hf import read_hf_config, record_from_hf
from rackline.arch.linear import GatedDeltaAttention
from rackline.arch.model import AggregateModel, AnyModel, LayerGroup, Model, ParameterCount
from rackline.arch.shapes import Dim, Projection

__all__ = [
    "AggregateModel",
    "AnyModel",
    "Attention",
    "DenseFfn",
    "Dim",
    "GatedDeltaAttention",
    "GroupedQueryAttention",
    "LayerGroup",
    "Model",
    "MoeFfn",
    "MultiHeadLatentAttention",
    "ParameterCount",
    "Projection",
    "build_model",
    "model",
    "read_hf_config",
    "record_from_hf",
    "windowed_pairs",
]
