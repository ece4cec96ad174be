"""`Subject`: the backend that is tested in one mode, and the reference beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deepinfer.backend import Backend, CallSpec
from deepinfer.backend.registry import REFERENCE, Selected, reference_for, select_backend
from deepinfer.backend.resolution import Operators, resolve


@dataclass
class Subject:
    """A backend under test. truth: the reference on the host, with all operators its own.

    selected: how it was selected; None for a backend object that is not installed.
    """

    name: str
    mode: str
    label: str
    backend: Backend
    reference: Backend
    truth: Operators
    selected: Selected | None = None

    @classmethod
    def load(cls, selected: Selected) -> Subject:
        """The subject of a selection; BackendError where it cannot be created."""
        backend = selected.create()
        subject = cls.of(
            selected.spec.name,
            backend,
            reference_for(selected, backend),
            selected.mode.name,
            selected.mode.label,
        )
        subject.selected = selected
        return subject

    @classmethod
    def of(
        cls,
        name: str,
        backend: Backend,
        reference: Backend | None = None,
        mode: str = "hardware",
        label: str = "",
    ) -> Subject:
        """A subject from a backend object, which need not be installed."""
        chosen = select_backend(REFERENCE, require=False)
        reference = reference or chosen.create(str(backend.device))
        host = chosen.create("cpu")
        return cls(name, mode, label, backend, reference, resolve(REFERENCE, host, host, []))

    @property
    def is_reference(self) -> bool:
        return type(self.backend) is type(self.truth.backend)

    @property
    def native(self) -> frozenset[str]:
        """Operators that the backend overrides."""
        return type(self.backend).native_operators()

    def operators(self, calls: Iterable[CallSpec]) -> Operators:
        """The resolved operators for these calls.

        UnsupportedOperatorError where a call has no provider.
        """
        return resolve(self.name, self.backend, self.reference, calls)
