"""Tags: words that begin with a hash."""


def tags(text: str) -> list[str]:
    """The tags of a text without their hash, each once, in order of first use."""
    found: list[str] = []
    for word in text.split():
        name = word[1:].rstrip(".,;")
        if word.startswith("#") and name and name not in found:
            found.append(name)
    return found


def tagged(notes: dict[str, str], *wanted: str) -> list[str]:
    """The titles of the notes that have all of the wanted tags, sorted."""
    return sorted(title for title, text in notes.items() if any(tag in tags(text) for tag in wanted))
