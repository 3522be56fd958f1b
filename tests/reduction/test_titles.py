"""Names of reducers in tables and figures."""

from redi.reduction import PROGRESSIVE
from redi.reduction.titles import TITLES, title


def test_every_progressive_reducer_has_a_title_of_its_own() -> None:
    assert set(PROGRESSIVE) <= set(TITLES)
    assert len(set(TITLES.values())) == len(TITLES)
    assert title("of-a-user") == "of-a-user"
