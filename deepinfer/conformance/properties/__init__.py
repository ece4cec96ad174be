"""Properties: checks that hold for any shapes, values and indices, not only for those of a grid.

A property is a case of an operator with the fact `property`. It draws cases of that operator and
checks each of them. Its verdict shows the smallest case that fails.
"""

from deepinfer.conformance.properties.checking import (
    check_property,
    drawn_case,
    is_property,
    is_search,
    property_cases,
    require_property,
    smallest_case,
)

__all__ = [
    "check_property",
    "drawn_case",
    "is_property",
    "is_search",
    "property_cases",
    "require_property",
    "smallest_case",
]
