"""Properties: checks that must hold for any shapes, values and indices, not only for a grid's.

A property is a case of an operator with the fact `property`. It draws cases of that operator and
runs what the property says on every one; the smallest that fails is what its verdict shows.
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
