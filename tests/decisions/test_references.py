"""Whether the user's words contradict what a model is about to do: only if they name another task."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring_tasks.task_references import (
    ListedTask,
    Seen,
    find_conflict,
    find_counted,
    find_mentioned,
    is_look,
    is_question,
    is_said,
    is_small_talk,
)

MILK, BREAD, GROCERY, MOM, BOTH = (
    ListedTask(str(number), description, number)
    for number, description in enumerate(["Buy milk", "Buy bread", "Grocery run", "Call mom", "Buy milk and eggs"], 1)
)
TASKS = (MILK, BREAD, GROCERY, MOM, BOTH)


@pytest.mark.parametrize(
    ("message", "task"),
    [
        ("delete buy milk", MILK),
        ("please delete the buy milk and eggs task", BOTH),
        ("I'm done with the call", MOM),
        ('complete "Buy milk"', MILK),
        ("change buy bread to buy rye bread", BREAD),
        ("rename the groceries into market day", GROCERY),
        ("I finished the grocery run, and delete bread", GROCERY),
        ("I finished the grocery run, and delete bread", BREAD),
        ("remove number 4", MOM),
        ("the second one is done", BREAD),
        ("I bought bread", BREAD),
        ("is bread on my list?", BREAD),
        ("I got the dairy", MILK),
        ("done!", MOM),
        ("mark the one from last week as done", BOTH),
        ("", MOM),
    ],
)
def test_what_the_words_name_or_leave_open_may_be_changed(message: str, task: ListedTask) -> None:
    assert find_conflict(task.id, message, TASKS) is None


@pytest.mark.parametrize(
    ("message", "task", "meant"),
    [
        ("complete the buy task", BREAD, MILK),
        ("delete buy milk and eggs", MILK, BOTH),
        ("delete buy milk", BOTH, MILK),
        ("delete the second one", MILK, BREAD),
        ("number 4", MILK, MOM),
        ("I called mom", GROCERY, MOM),
        ("I bought the bread already", MOM, BREAD),
    ],
)
def test_what_they_name_instead_may_not(message: str, task: ListedTask, meant: ListedTask) -> None:
    assert find_conflict(task.id, message, TASKS) == meant


@pytest.mark.parametrize(
    ("message", "right", "wrong"),
    [
        ("Die Milch ist gekauft", "Milch kaufen", "Oma anrufen"),
        ("J'ai payé le loyer", "Payer le loyer", "Acheter du pain"),
        ("家賃を払いました", "家賃を払う", "牛乳を買う"),
        ("우유 샀어요", "우유를 사기", "방 청소하기"),
        ("اشتريت الحليب", "شراء الحليب", "دفع الإيجار"),
        ("बिजली का बिल दे दिया", "बिजली का बिल भरना", "माँ को फोन करना"),
        ("Я купил молоко", "Купить молоко", "Позвонить маме"),
    ],
)
def test_words_are_words_in_every_script(message: str, right: str, wrong: str) -> None:
    tasks = [ListedTask("r", right), ListedTask("w", wrong)]
    assert find_conflict("r", message, tasks) is None
    assert find_conflict("w", message, tasks) == tasks[0]


def test_positions_count_in_the_list_that_was_shown_last() -> None:
    seen = Seen(shown=("4", "2", "gone"))
    assert find_counted("the first one", TASKS, seen) == (MOM,)
    assert find_counted("2", TASKS, seen) == (BREAD,)
    assert find_counted("the third one, or the fourth one, or 0, or 99999", TASKS, seen) == ()


def test_tasks_are_mentioned_in_the_order_of_the_words() -> None:
    assert find_mentioned("Mom, or the bread?", TASKS) == (MOM, BREAD)


@pytest.mark.parametrize(("text", "said"), [("Buy stamps", "we need stamps"), ("卵を買う", "卵買わなきゃ"), ("Tea", "tea!")])
def test_a_text_that_has_something_of_what_was_said_is_said(text: str, said: str) -> None:
    assert is_said(text, said)
    assert not is_said("Wire the money", f"{said} the list")


def test_english_small_talk_is_known_and_no_other() -> None:
    assert is_small_talk("Thank you so much!")
    assert not is_small_talk("Danke sehr!")
    assert is_question("what is left to do?")
    assert is_look("show me the list please")
    assert not is_question("what about marking the milk as done?")
    assert not is_question("qué queda?")


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=20), max_size=6))
def test_nothing_that_anybody_writes_is_too_much(message: str, descriptions: list[str]) -> None:
    tasks = [ListedTask(str(number), text) for number, text in enumerate(descriptions)]
    for task in tasks:
        assert find_conflict(task.id, message, tasks) != task


@given(st.lists(st.text(alphabet="abcdefgh ", min_size=3, max_size=12).map(str.strip).filter(bool), min_size=1, max_size=6))
def test_a_whole_description_never_contradicts_its_task(descriptions: list[str]) -> None:
    tasks = [ListedTask(str(number), text) for number, text in enumerate(descriptions)]
    for task in tasks:
        found = find_conflict(task.id, task.description, tasks)
        assert found is None or set(found.description.split()) >= set(task.description.split()) - {"a"}
