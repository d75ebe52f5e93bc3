"""Which task somebody means: the rules in their order, and nothing guessed."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring_tasks.task_references import (
    MOST_PHRASES,
    MOST_WORDS,
    ListedTask,
    Match,
    Seen,
    find_mismatch,
    find_named_tasks,
    resolve,
)

MILK, BREAD, GROCERY, MOM, BOTH = (
    ListedTask(str(number), description)
    for number, description in enumerate(["Buy milk", "Buy bread", "Grocery run", "Call mom", "Buy milk and eggs"], 1)
)
TASKS = (MILK, BREAD, GROCERY, MOM, BOTH)


@pytest.mark.parametrize(
    ("reference", "how", "meant"),
    [
        ("buy milk", "exact", [MILK]),
        ("BUY  BREAD.", "exact", [BREAD]),
        ("the grocery one", "partial", [GROCERY]),
        ("groceries", "partial", [GROCERY]),
        ("mom", "partial", [MOM]),
        ("milk", "partial", [MILK, BOTH]),
        ("eggs", "partial", [BOTH]),
        ("buy", "partial", [MILK, BREAD, BOTH]),
        ("the second one", "position", [BREAD]),
        ("the 3rd", "position", [GROCERY]),
        ("last", "position", [BOTH]),
        ("the first task", "position", [MILK]),
        ("2", "number", [BREAD]),
        ("task 4", "number", [MOM]),
        ("#5", "number", [BOTH]),
        ("the tenth", None, []),
        ("task 0", None, []),
        ("task 99", None, []),
        ("dairy", None, []),
        ("everything", None, []),
        ("it", "it", []),
        ("", None, []),
    ],
)
def test_the_first_rule_that_fits_decides(reference: str, how: str | None, meant: list[ListedTask]) -> None:
    assert resolve(reference, TASKS) == Match(tuple(meant), how)  # type: ignore[arg-type]


def test_a_description_beats_a_word_beats_a_position_beats_a_number() -> None:
    tasks = (ListedTask("a", "Second"), ListedTask("b", "2"), ListedTask("c", "Read the second chapter"), ListedTask("d", "Wash"))
    assert resolve("second", tasks) == Match((tasks[0],), "exact")
    assert resolve("2", tasks) == Match((tasks[1],), "exact")
    assert resolve("the second chapter", tasks) == Match((tasks[2],), "partial")
    assert resolve("the second one", tasks) == Match((tasks[1],), "position")
    assert resolve("task 4", tasks) == Match((tasks[3],), "number")


def test_what_a_description_says_not_to_do_is_a_description() -> None:
    task = ListedTask("a", "Don't forget the keys")
    assert find_mismatch("a", "complete don't forget the keys", [task]) is None
    assert find_mismatch("a", "don't complete don't forget the keys", [task]) == Match()


def test_positions_count_in_the_list_that_was_shown_last() -> None:
    seen = Seen(shown=("4", "2", "gone"))
    assert resolve("the first one", TASKS, seen) == Match((MOM,), "position")
    assert resolve("2", TASKS, seen) == Match((BREAD,), "number")
    assert resolve("the third one", TASKS, seen) == Match()
    assert resolve("the fourth one", TASKS, seen) == Match()


def test_it_is_the_task_that_was_spoken_of() -> None:
    assert resolve("mark it as done", TASKS, Seen(recent="4")) == Match((MOM,), "it")
    assert resolve("that one", TASKS, Seen(recent="4")) == Match((MOM,), "it")
    assert resolve("it", TASKS, Seen(recent="gone")).tasks == ()


@pytest.mark.parametrize(
    ("message", "task"),
    [
        ("delete buy milk", MILK),
        ("please delete the buy milk and eggs task", BOTH),
        ("I'm done with the call", MOM),
        ('complete "Buy milk"', MILK),
        ("change buy bread to buy rye bread", BREAD),
        ("rename the grocery run into market day", GROCERY),
        ("I finished the grocery run, and delete bread", GROCERY),
        ("I finished the grocery run, and delete bread", BREAD),
        ("remove number 4", MOM),
        ("delete the last one", BOTH),
        ("could you complete the bread please?", BREAD),
        ("I bought bread", BREAD),
        ("what is left? complete bread", BREAD),
        ("no, the bread one", BREAD),
        ('complete "Buy milk and eggs"', BOTH),
    ],
)
def test_a_task_that_the_message_names_may_be_changed(message: str, task: ListedTask) -> None:
    assert find_mismatch(task.id, message, TASKS) is None


@pytest.mark.parametrize(
    ("message", "task", "meant"),
    [
        ("delete milk", MILK, [MILK, BOTH]),
        ("complete the buy task", BREAD, [MILK, BREAD, BOTH]),
        ("delete the dairy one", MILK, []),
        ("delete everything", MILK, []),
        ("delete buy milk and eggs", MILK, []),
        ("delete the second one", MILK, []),
        ("delete it", MOM, []),
        ("what is the weather?", MOM, []),
        ("complete buy cheese", MILK, []),
        ("add call the plumber", MOM, []),
        ("mark the one from last week as done", BOTH, []),
        ("mark the one from last week as done", MILK, []),
        ("wait a second, I finished something", BREAD, []),
        ("just a second", BREAD, []),
        ("I finished everything except the bread", BREAD, []),
        ("I finished everything but the bread", BREAD, []),
        ("don't complete the bread", BREAD, []),
        ('do not complete "Buy bread"', BREAD, []),
        ("is bread on my list?", BREAD, []),
        ("is bread on my list", BREAD, []),
        ("buy bread?", BREAD, []),
        ("I will buy bread", BREAD, []),
        ("delete 2 tasks", BREAD, []),
    ],
)
def test_a_task_that_the_message_does_not_name_alone_may_not(message: str, task: ListedTask, meant: list[ListedTask]) -> None:
    found = find_mismatch(task.id, message, TASKS)
    assert found is not None
    assert list(found.tasks) == meant


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=20), max_size=6))
def test_nothing_that_anybody_writes_is_too_much(message: str, descriptions: list[str]) -> None:
    tasks = [ListedTask(str(number), text) for number, text in enumerate(descriptions)]
    for match in find_named_tasks(message, tasks):
        assert match.how is not None
        assert set(match.tasks) <= set(tasks)
    assert resolve(message, tasks) == resolve(message, tasks)


@given(st.lists(st.text(alphabet="abcdefgh ", min_size=3, max_size=12).map(str.strip).filter(bool), min_size=1, max_size=6))
def test_a_whole_description_always_names_its_task(descriptions: list[str]) -> None:
    tasks = [ListedTask(str(number), text) for number, text in enumerate(descriptions)]
    for task in tasks:
        found = resolve(task.description, tasks)
        assert (task in found.tasks, found.how) == (True, "exact")


def test_numbers_are_those_of_the_list_also_where_it_has_gaps() -> None:
    tasks = [ListedTask("a", "Wash", 1), ListedTask("b", "Dry", 105), ListedTask("c", "Iron", 0)]
    assert resolve("number 105", tasks) == Match((tasks[1],), "number")
    assert resolve("the last one", tasks) == Match((tasks[1],), "position")
    assert resolve("number 2", tasks) == resolve("the third one", tasks) == Match()


class Counted(tuple[ListedTask, ...]):
    """Tasks that count how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[ListedTask]:
        Counted.passes += 1
        return super().__iter__()


def test_a_long_message_is_held_against_the_tasks_a_bounded_number_of_times() -> None:
    Counted.passes = 0
    find_named_tasks("a, b and c; " * 330, Counted(TASKS))
    short = Counted.passes
    find_named_tasks("apple, banana and cherry; damson " * 120, Counted(TASKS))
    assert 0 < short < Counted.passes < (MOST_PHRASES + 1) * (MOST_WORDS + 8)
