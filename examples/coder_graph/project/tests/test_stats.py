from notes.stats import median, words


def test_words_are_counted():
    assert words("a b A") == {"a": 2, "b": 1}


def test_median():
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 3, 2]) == 2.5
    assert median([1, 2, 3, 4, 9]) == 3
