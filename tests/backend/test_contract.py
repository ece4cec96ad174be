"""The operator contract itself: documented, stable, and steps that are made of operators only."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import NoReturn

import pytest

from deepinfer.backend import OPERATORS, Backend, Contract
from deepinfer.backend.base import FAMILIES, family_of
from deepinfer.backend.device import Device
from deepinfer.backend.operators import declaration_of

# Changing this list is a change of the contract: raise CONTRACT_VERSION with it.
PRIMITIVES = {
    "dense": "embed grouped_linear linear pack_linear pack_table pack_vector quantise rms_norm "
    "rope",
    "hyper": "collapse expand mix",
    "engram": "gather inject ngram_rows",
    "cache": "compress copy export import_ load store",
    "attention": "attend best_blocks index_scores top",
    "experts": "combine dispatch expert_mlp pack_experts route swiglu",
    "sampling": "mask process residual sample top_logprobs verify",
    "speculation": "confidence draft_inputs lengths_after next_history next_inputs split_budget",
}
STEPS = {
    "dense": "logits norm_quantise project",
    "hyper": "advance enter",
    "engram": "engram",
    "cache": "norm_rope_store update_context",
    "attention": "attend_output select",
    "experts": "mixture shared_mlp",
}

STEP_NAMES = sorted(name for name, kind in OPERATORS.items() if kind == "step")
PRIMITIVE_NAMES = sorted(name for name, kind in OPERATORS.items() if kind == "primitive")

# What a step's body may use beside operators: views of tensors, records of the contract, and
# arithmetic on index tensors.
VIEWS = {"view", "reshape", "flatten", "clamp"}
RECORDS = {"Activation", "Advanced", "Entered", "Projection", "Selection", "accumulation_dtype"}


def by_family(kind: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name in sorted(OPERATORS):
        if OPERATORS[name] == kind:
            found.setdefault(family_of(name), []).append(name)
    return {family: " ".join(names) for family, names in found.items()}


def body(operator: str) -> ast.FunctionDef:
    source = textwrap.dedent(inspect.getsource(getattr(Contract, operator)))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return function


def test_primitives_of_the_contract() -> None:
    assert by_family("primitive") == PRIMITIVES


def test_steps_of_the_contract() -> None:
    assert by_family("step") == STEPS


def test_every_family_class_is_part_of_the_contract() -> None:
    assert all(issubclass(Contract, family) for family in FAMILIES.values())


def test_family_of_something_else() -> None:
    with pytest.raises(KeyError, match="workspace"):
        family_of("workspace")


def test_kind_of_what_is_no_operator() -> None:
    assert declaration_of(Contract.workspace) is None


def test_only_operators_and_services_are_public() -> None:
    public = {name for name in dir(Contract) if not name.startswith("_")}
    assert public == set(OPERATORS) | {name for name in vars(Device) if not name.startswith("_")}


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_operator_is_documented(operator: str) -> None:
    function = getattr(Contract, operator)
    assert inspect.getdoc(function), operator
    signature = inspect.signature(function)
    missing = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert missing == ["self"]
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_operators_take_positional_arguments_without_defaults(operator: str) -> None:
    parameters = inspect.signature(getattr(Contract, operator)).parameters.values()
    assert {p.kind for p in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert all(p.default is p.empty for p in parameters)


@pytest.mark.parametrize("operator", PRIMITIVE_NAMES)
def test_primitive_has_no_body(operator: str) -> None:
    function = getattr(Contract, operator)
    arguments = [None] * (len(inspect.signature(function).parameters) - 1)
    with pytest.raises(NotImplementedError):
        function(Backend("cpu"), *arguments)


def refuse(node: ast.AST, what: str) -> NoReturn:
    raise AssertionError(f"line {getattr(node, 'lineno', '?')}: {what}: {ast.unparse(node)}")


@pytest.mark.parametrize("operator", STEP_NAMES)
def test_step_calls_operators_views_and_records_only(operator: str) -> None:
    for node in ast.walk(ast.Module(body(operator).body, [])):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name):
            if function.id not in RECORDS:
                refuse(node, "not a record of the contract")
        elif not isinstance(function, ast.Attribute):
            refuse(node, "an indirect call")
        elif isinstance(function.value, ast.Name) and function.value.id == "self":
            if function.attr not in OPERATORS:
                refuse(node, "not an operator")
        elif function.attr not in VIEWS:
            refuse(node, "not a view")


@pytest.mark.parametrize("operator", STEP_NAMES)
def test_step_uses_torch_for_types_only(operator: str) -> None:
    for node in ast.walk(ast.Module(body(operator).body, [])):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch":
            assert node.attr == "dtype", ast.unparse(node)


@pytest.mark.parametrize("operator", STEP_NAMES)
def test_step_uses_self_for_operators_only(operator: str) -> None:
    used = {
        node.attr
        for node in ast.walk(body(operator))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }
    assert used <= set(OPERATORS)
    assert used - {operator}, "a step is made of operators"


def test_backend_of_nothing_overrides_nothing() -> None:
    assert Backend.native_operators() == frozenset()


def test_override_is_native_in_the_class_and_those_below() -> None:
    class Chip(Backend):
        def linear(self, a, w, out_dtype):  # type: ignore[no-untyped-def]
            return a

    class Later(Chip):
        def mixture(self, *args):  # type: ignore[no-untyped-def]
            return None

    assert Chip.native_operators() == {"linear"}
    assert Later.native_operators() == {"linear", "mixture"}
