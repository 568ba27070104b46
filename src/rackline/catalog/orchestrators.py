"""Records of orchestrators: how the chips, nodes and engine images of a deployment are called in their manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from rackline.catalog.base import SourcedRecord, Text


class OrchestratorRecord(SourcedRecord):
    """What a manifest needs to know beside the plan.

    Args:
        version: Release of the orchestrator, or of the interface that its manifests follow.
        resources: Resource name under which a chip is asked for, by vendor.
        labels: Label of a node that names its chip, by vendor.
        products: Value of that label, by chip.
        images: Container image of an engine, by engine, then by chip or vendor; "{version}" is the engine's.
        engines: Version of each engine in the images, where the orchestrator fixes it.
    """

    version: Text = Field(pattern=r"^v?\d+(\.\d+)*$")
    resources: Mapping[str, Text]
    labels: Mapping[str, Text] = Field(default_factory=dict)
    products: Mapping[str, Text] = Field(default_factory=dict)
    images: Mapping[str, Mapping[str, Text]]
    engines: Mapping[str, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _every_name_has_a_source(self) -> Self:
        tables = ("resources", "labels", "products", "images", "engines")
        keys = [f"{table}.{key}" for table in tables for key in getattr(self, table)]
        for key in keys:
            if self.source_of(key) is None:
                raise ValueError(f"no [[sources]] entry covers {key}")
        return self
