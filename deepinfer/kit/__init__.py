"""The kit: `new_backend` writes the project that a backend starts from."""

from deepinfer.kit.names import check_name
from deepinfer.kit.project import new_backend

__all__ = ["check_name", "new_backend"]
