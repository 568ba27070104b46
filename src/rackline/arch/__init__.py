"""A model and its cost per token."""

from rackline.arch.attention import Attention, Core, windowed_pairs
from rackline.arch.build import build_model, model
from rackline.arch.ffn import DenseFfn, MoeFfn
from rackline.arch.hf import read_hf_config, record_from_hf
from rackline.arch.kinds import attention_kind_names
from rackline.arch.kinds.gated_delta import GatedDeltaAttention
from rackline.arch.kinds.gqa import GroupedQueryAttention
from rackline.arch.kinds.mla import MultiHeadLatentAttention
from rackline.arch.kinds.none import NoAttention
from rackline.arch.kinds.sparse import Indexer, SparseLatentAttention
from rackline.arch.model import AggregateModel, AnyModel, LayerGroup, Model, ParameterCount
from rackline.arch.shapes import Dim, Projection

__all__ = [
    "AggregateModel",
    "AnyModel",
    "Attention",
    "Core",
    "DenseFfn",
    "Dim",
    "GatedDeltaAttention",
    "GroupedQueryAttention",
    "Indexer",
    "LayerGroup",
    "Model",
    "MoeFfn",
    "MultiHeadLatentAttention",
    "NoAttention",
    "ParameterCount",
    "Projection",
    "SparseLatentAttention",
    "attention_kind_names",
    "build_model",
    "model",
    "read_hf_config",
    "record_from_hf",
    "windowed_pairs",
]
