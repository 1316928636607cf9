"""Foreign text made fit for a terminal, a log or an error text. Imports nothing of hpcoll.

Names of communicators, hosts and files, arguments of programs, values of variables and contents of files may hold anything: sequences
that a terminal obeys, marks that turn the direction of what follows, megabytes.
"""

NAME, VALUE, LINE = 200, 100, 4000  # most characters of a name, of a refused value, of a line that quotes some


def printable(text: str, most: int = NAME) -> str:
    """Return a text as one line of printable characters, others as question marks, cut after ``most``.

    >>> printable("a\\tb\\n c"), printable("Größe \\x1b[31m"), printable("abcdef", 4)
    ('a b c', 'Größe ?[31m', 'abc…')
    """
    line = " ".join(text.split())[: most + 1]
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def quoted(value: object) -> str:
    """Return the repr of a refused value, cut after `VALUE` characters.

    >>> quoted("a\\x1b"), len(quoted("9" * 5000))
    ("'a\\\\x1b'", 100)
    """
    text = repr(value)
    return text if len(text) <= VALUE else f"{text[: VALUE - 1]}…"
