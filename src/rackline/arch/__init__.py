"""A model and its cost per token."""

from rackline.arch.adapted import apply_adapter
from rackline.arch.adapters import ADAPTER_BYTES, AdaptedModule, AppliedAdapter
from rackline.arch.checkpoint import CountCheck, CountedPart, FoundModel, check_counts
from rackline.arch.hf import read_hf_config, record_from_hf
from rackline.arch.kinds import Attention, Core, DenseFfn, Dim, MoeFfn, Projection, attention_kind_names, windowed_pairs
from rackline.arch.kinds.gqa import GroupedQueryAttention, NoAttention
from rackline.arch.kinds.mla import Indexer, MultiHeadLatentAttention, SparseLatentAttention
from rackline.arch.kinds.recurrent import GatedDeltaAttention
from rackline.arch.lookup import build_model, find_model, find_towers, found_model, model, with_overrides
from rackline.arch.model import AggregateModel, AnyModel, LayerGroup, Model, Origin, ParameterCount
from rackline.arch.towers import Media, MediaPart, MultimodalModel, Tower, View, media_of, with_media

__all__ = [
    "ADAPTER_BYTES",
    "AdaptedModule",
    "AggregateModel",
    "AnyModel",
    "AppliedAdapter",
    "Attention",
    "Core",
    "CountCheck",
    "CountedPart",
    "DenseFfn",
    "Dim",
    "FoundModel",
    "GatedDeltaAttention",
    "GroupedQueryAttention",
    "Indexer",
    "LayerGroup",
    "Media",
    "MediaPart",
    "Model",
    "MoeFfn",
    "MultiHeadLatentAttention",
    "MultimodalModel",
    "NoAttention",
    "Origin",
    "ParameterCount",
    "Projection",
    "SparseLatentAttention",
    "Tower",
    "View",
    "apply_adapter",
    "attention_kind_names",
    "build_model",
    "check_counts",
    "find_model",
    "find_towers",
    "found_model",
    "media_of",
    "model",
    "read_hf_config",
    "record_from_hf",
    "windowed_pairs",
    "with_media",
    "with_overrides",
]
