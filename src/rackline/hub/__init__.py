"""Repositories of the Hugging Face Hub: what a configuration and tensor headers say, never weights."""

from rackline.hub.checkpoint import Adapter as Adapter
from rackline.hub.checkpoint import Checkpoint as Checkpoint
from rackline.hub.checkpoint import Tensor as Tensor
from rackline.hub.checkpoint import folder_checkpoint as folder_checkpoint
from rackline.hub.checkpoint import read_adapter as read_adapter
from rackline.hub.checkpoint import repository_checkpoint as repository_checkpoint
from rackline.hub.repository import Repository as Repository
from rackline.hub.repository import RepositoryId as RepositoryId
from rackline.hub.repository import open_repository as open_repository
