"""The words of the nano data: every one is one token, with and without the space before it.

Pools do not overlap, so that what a word is (a person, a thing, a place) follows from the word.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = tuple(
    "Anna Ben Carl Dora Emil Fay Greta Hugo Ida Jack Kate Leo Mia Nora Otto Paul Rosa Sam Tina Uma "
    "Vera Will Zoe Alice Bruno Clara David Ella Frank Gina Henry Iris James Karin Lena Mark Nina "
    "Oscar Petra Rita Simon Thea Victor Wendy Adam Bella Felix Laura".split()
)
OBJECTS: Final = tuple(
    "lamp rope cup key book map drum flute hat coat ring clock knife spoon brush mirror pencil "
    "letter ball kite bell candle hammer ladder needle pillow blanket broom bottle plate whistle "
    "sword shield helmet scarf glove boot belt purse comb razor towel soap sponge saw axe shovel "
    "rake net hook chain wheel engine camera radio guitar violin piano trumpet puzzle robot mask "
    "flag tent".split()
)
PLACES: Final = tuple(
    "kitchen garden cellar attic tower barn stable school church market harbor castle library "
    "museum bakery mill forge hall office garage shop station chapel palace cabin cave tunnel "
    "theater hotel bank prison farm".split()
)
CONTAINERS: Final = tuple(
    "box basket bag chest drawer bucket barrel jar crate sack tray trunk bowl pot case cart".split()
)
COUNTED: Final = tuple(
    "apples coins eggs stones shells nuts pears plums cards beads nails cakes roses seeds buttons "
    "figs".split()
)
NUMBERS: Final = tuple(
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty".split()
)
QUALITIES: Final = tuple(
    "red blue green yellow white black brown gray pink purple orange silver golden tall short wide "
    "narrow thick thin round flat sharp soft hard heavy light warm cold dry wet clean dirty new "
    "old young fast slow loud quiet bright dark sweet sour bitter salty empty full deep rough "
    "smooth strong weak brave shy kind rich poor happy sad calm proud early".split()
)
ANIMALS: Final = tuple(
    "dog cat horse cow goat sheep fox bear wolf owl crow duck goose mouse rabbit frog".split()
)
MOVES: Final = tuple(
    "runs walks goes comes jumps looks turns moves sleeps waits sings plays rests swims".split()
)
SPOTS: Final = tuple(
    "river lake hill forest field meadow bridge road fence gate pond beach valley mountain "
    "island village".split()
)
WAYS: Final = ("to", "from", "near", "by", "behind", "over")
TIMES: Final = (
    *("in the morning", "in the evening", "at noon", "at night", "in spring", "in summer"),
    *("in winter", "after the rain", "before the storm", "every day", "once a week", "all day"),
)

KEYS: Final = (*OBJECTS, *ANIMALS, *CONTAINERS, *SPOTS)
"""Keys of the recall task."""
VALUES: Final = (*QUALITIES, *NUMBERS, *PLACES)
"""Values of the recall task."""
