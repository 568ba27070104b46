"""Configurations and tensor headers from the Hugging Face Hub."""

from rackline.hub.checkpoint import (
    Adapter as Adapter,
    Checkpoint as Checkpoint,
    Tensor as Tensor,
    folder_checkpoint as folder_checkpoint,
    read_adapter as read_adapter,
    repository_checkpoint as repository_checkpoint,
)
from rackline.hub.repository import (
    Repository as Repository,
    RepositoryId as RepositoryId,
    open_repository as open_repository,
)
