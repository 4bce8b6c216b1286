import pytest
from calculator import evaluate, to_rpn, tokenize


def test_tokens():
    assert tokenize("1 + 2*(3-4.5)") == ["1", "+", "2", "*", "(", "3", "-", "4.5", ")"]


def test_bad_character():
    with pytest.raises(ValueError):
        tokenize("1 $ 2")


def test_rpn():
    assert to_rpn(tokenize("1 + 2 * 3")) == ["1", "2", "3", "*", "+"]
    assert to_rpn(tokenize("2 ^ 3 ^ 2")) == ["2", "3", "2", "^", "^"]


@pytest.mark.parametrize(
    "text, value",
    [("1 + 2", 3), ("2 * 3 + 4", 10), ("7 - 2", 5), ("7 - 2 - 1", 4), ("8 / 4", 2), ("2 * (3 - 1)", 4), ("2 ^ 3", 8)],
)
def test_evaluate(text, value):
    assert evaluate(text) == value


def test_unbalanced():
    with pytest.raises(ValueError):
        evaluate("(1 + 2")
    with pytest.raises(ValueError):
        evaluate("1 + 2)")
