"""Which class of a checkpoint's head a folder is, and what the classes are called."""

import json
from pathlib import Path

import pytest

from redi.errors import ConfigError
from redi.images.classes import class_titles, find_class, head_classes, listed_classes, prompt_names

HEAD = ["tench, Tinca tinca", "Great_White shark", "eel"]


def refusal(folders: list[str], head: list[str], class_map: Path | None = None) -> str:
    """The line that says why the folders cannot be matched."""
    with pytest.raises(ConfigError) as caught:
        head_classes(folders, head, class_map)
    message = str(caught.value)
    assert "\n" not in message
    return message


# By name ------------------------------------------------------------------------------------------


def test_a_folder_is_the_class_of_exactly_its_name() -> None:
    assert head_classes(["eel", "tench, Tinca tinca"], HEAD) == ([2, 0], "by name")


def test_an_exact_name_goes_before_one_in_another_case() -> None:
    assert head_classes(["cardigan", "Cardigan"], ["Cardigan", "cardigan"])[0] == [1, 0]


@pytest.mark.parametrize("folder", ["great white shark", "GREAT_WHITE_SHARK", " Great  white_shark"])
def test_case_underscores_and_spaces_make_no_other_name(folder: str) -> None:
    assert head_classes([folder], HEAD)[0] == [1]


@pytest.mark.parametrize("folder", ["tench", "Tinca tinca", "tinca_tinca"])
def test_any_part_of_a_name_with_commas_will_do(folder: str) -> None:
    assert head_classes([folder], HEAD)[0] == [0]


def test_a_whole_name_goes_before_a_part_of_another() -> None:
    head = ["crane, bird", "Crane"]
    assert head_classes(["crane"], head)[0] == [1]
    assert head_classes(["bird"], head)[0] == [0]


def test_a_part_that_a_name_holds_twice_is_one_class() -> None:
    assert head_classes(["crane"], ["crane, Crane", "eel"])[0] == [0]


def test_a_name_of_several_classes_is_refused() -> None:
    message = refusal(["crane"], ["crane", "eel", "crane"])
    assert "The head has 2 classes called 'crane'." in message
    assert "--class-map" in message
    assert "3 classes called 'crane'" in refusal(["crane"], ["crane, a", "crane, b", "c, crane"])


def test_two_folders_of_one_class_are_refused() -> None:
    message = refusal(["eel", "EEL"], ["eel", "tench"])
    assert "Several folders match the head's class 'eel'." in message
    assert "--class-map" in message


# By order -----------------------------------------------------------------------------------------


def test_order_decides_where_no_name_agrees_and_the_counts_do() -> None:
    classes, how = head_classes(["n01", "n02", "n03"], HEAD)
    assert classes == [0, 1, 2]
    assert how == "by sorted order: the names differ and the counts agree"


def test_a_name_that_agrees_with_the_order_does_no_harm() -> None:
    assert head_classes(["n01", "n02", "eel"], HEAD)[0] == [0, 1, 2]


def test_a_name_that_contradicts_the_order_is_refused() -> None:
    message = refusal(["eel", "n02"], ["tench", "eel"])
    assert "others, such as 'n02', do not, so neither names nor order can be trusted" in message
    assert "--class-map" in message


@pytest.mark.parametrize("folders", [["n01", "n02"], ["eel", "n01"], ["n01", "n02", "n03", "n04"]])
def test_order_decides_nothing_where_the_counts_differ(folders: list[str]) -> None:
    message = refusal(folders, HEAD)
    assert "head has 3 classes and none is called 'n01'" in message
    assert f"There are {len(folders)} folders, so the sorted order cannot decide" in message
    assert "--class-map" in message


# By a class map -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "n01\teel\nn02\t0\n",
        "n02\tTench, Tinca_tinca\n\nn01\t 2 \nunused\twhale\n",
        "n01\teel\ta comment\nn02\t0\n",
        json.dumps({"n01": "EEL", "n02": 0}),
        json.dumps({"n01": 2, "n02": "tench, tinca tinca"}, indent=1),
    ],
)
def test_a_class_map_decides(tmp_path: Path, text: str) -> None:
    file = tmp_path / "map.txt"
    file.write_text(text)
    assert head_classes(["n01", "n02"], HEAD, file) == ([2, 0], "by map.txt")


def test_a_class_map_goes_before_names_and_may_name_a_class_twice(tmp_path: Path) -> None:
    file = tmp_path / "map.tsv"
    file.write_text("eel\tGreat White shark\ntench\t1\n")
    assert head_classes(["eel", "tench"], HEAD, file)[0] == [1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n01\teel\n", "does not name the folder 'n02'"),
        ("n01\teel\nn02\twhale\n", "gives 'n02' the class 'whale', which the head lacks"),
        ("n01\teel\nn02\t3\n", "gives 'n02' the class '3', which the head lacks"),
        ("n01\teel\nn02\t-1\n", "gives 'n02' the class '-1', which the head lacks"),
        ("n01\teel\nn02\t\n", "gives 'n02' the class '', which the head lacks"),
        ("n01 eel\n", "cannot be read"),
        ('{"n01": ', "cannot be read"),
        ('{"n01": "eel"}', "does not name the folder 'n02'"),
    ],
)
def test_mistakes_in_a_class_map_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "map.txt"
    file.write_text(text)
    line = refusal(["n01", "n02"], HEAD, file)
    assert message in line
    assert str(file) in line


def test_a_class_map_that_is_no_text_or_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    assert "needs lines `folder<TAB>class`" in refusal(["n01"], HEAD, file)
    file.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(["n01"], HEAD, file)


@pytest.mark.parametrize("text", ["n01\teel\nn02\t0\n", '{"n01": "eel", "n02": 0}'])
def test_a_byte_order_mark_is_no_part_of_a_class_map(tmp_path: Path, text: str) -> None:
    file = tmp_path / "map.txt"
    file.write_text(text, encoding="utf-8-sig")
    assert head_classes(["n01", "n02"], HEAD, file)[0] == [2, 0]


def test_a_class_map_of_endless_depth_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text('{"n01": ' + "[" * 200_000)
    assert "cannot be read" in refusal(["n01"], HEAD, file)


# Titles -------------------------------------------------------------------------------------------


def test_titles_are_the_heads_names_or_the_folders() -> None:
    assert class_titles(["0", "1"], HEAD, [2, 1], None) == ["eel", "Great_White shark"]
    assert class_titles(["0", "1"], HEAD, [], None) == ["0", "1"]


def test_titles_from_a_file_in_the_order_of_the_folders(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("first\n\nsecond: Rényi\n", encoding="utf-8")
    assert class_titles(["0", "1"], HEAD, [2, 1], file) == ["first", "second: Rényi"]


@pytest.mark.parametrize("text", ["first\nsecond\n", "0\tfirst\n1\tsecond\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_title(tmp_path: Path, text: str) -> None:
    file = tmp_path / "names.txt"
    file.write_text(text, encoding="utf-8-sig")
    assert class_titles(["0", "1"], HEAD, [], file) == ["first", "second"]
    assert list(listed_classes(file).values()) == ["first", "second"]


def test_titles_from_a_file_by_folder(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("1\tsecond\twith a tab\n7\tunused\n")
    assert class_titles(["0", "1"], HEAD, [2, 1], file) == ["0", "second\twith a tab"]


@pytest.mark.parametrize(("text", "lines"), [("only one\n", 1), ("a\nb\nc\n", 3), ("0\tfirst\nsecond\n", 2)])
def test_a_file_of_too_few_or_mixed_titles_is_refused(tmp_path: Path, text: str, lines: int) -> None:
    file = tmp_path / "names.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"each of the 2 classes .* it has {lines} lines\.$"):
        class_titles(["0", "1"], HEAD, [], file)


def test_a_file_of_titles_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    with pytest.raises(ConfigError, match=r"names\.txt cannot be read"):
        class_titles(["0", "1"], HEAD, [], file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"names\.txt cannot be read"):
        class_titles(["0", "1"], HEAD, [], file)


# In prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("n01440764, tench, Tinca tinca", "tench"),
        ("tench, Tinca tinca", "tench"),
        ("polar_bear", "polar bear"),
        (" Great__White  shark ", "Great White shark"),
        ("n0144", "n0144"),
        ("7", "7"),
        ("a\x1b[2J", "a\\x1b[2J"),
    ],
)
def test_a_prompt_has_the_first_common_name(title: str, name: str) -> None:
    assert prompt_names([title, "eel"]) == [name, "eel"]


@pytest.mark.parametrize("title", ["n01440764", "", " , _", "n01440764, n02119789"])
def test_a_class_without_a_name_cannot_stand_in_a_prompt(title: str) -> None:
    with pytest.raises(ConfigError, match=f"The class {title!r} has no name .*--names FILE"):
        prompt_names(["eel", title])


def test_a_file_of_names_lists_the_classes(tmp_path: Path) -> None:
    file = tmp_path / "names"
    file.write_text("n1\ttench, Tinca tinca\n\nn2\teel\n")
    assert listed_classes(file) == {"n1": "tench, Tinca tinca", "n2": "eel"}
    file.write_text("polar_bear\n eel \n")
    assert listed_classes(file) == {"polar_bear": "polar_bear", "eel": "eel"}


@pytest.mark.parametrize("content", ["", "eel\neel\n", "n1\teel\nn1\tcrane\n", "n1\teel\ncrane\n"])
def test_a_file_that_lists_no_class_or_one_twice_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "names").write_text(content)
    with pytest.raises(ConfigError, match="and no class twice; it has"):
        listed_classes(tmp_path / "names")


def test_a_class_is_found_by_folder_title_and_first_name() -> None:
    folders, titles = ["n01", "n02"], ["tench, Tinca tinca", "goldfish"]
    assert [find_class(folders, titles, name) for name in ("n01", "GOLDFISH", "tench")] == [0, 1, 0]
    with pytest.raises(ConfigError, match=r"no class 'goldfisch'\. Did you mean goldfish"):
        find_class(folders, titles, "goldfisch")
