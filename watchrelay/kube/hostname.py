"""Whether a name can be a host's.

Room: kube. In: the host of a URL, or the name that a certificate must carry. Out: nothing, or why it cannot be one.
"""

from __future__ import annotations

from yarl import URL


def check_host(name: str) -> None:
    """Pass for every name and address that can be asked for; a dot at the end, and underscores, are nobody's mistake.

    Raises: ValueError, which says what is wrong without showing the name.
    Source: `socket` and `ssl` encode each host as this does, `yarl` decodes it to show it: they raise a UnicodeError in the middle of a
    request; RFC 1035 2.3.4.
    """
    if not name.isprintable() or " " in name:
        raise ValueError("names a host with a blank or a control character")
    try:
        name.encode("idna")
    except UnicodeError:
        raise ValueError("names a host that cannot exist: a part of it between dots is empty, or longer than 63 characters") from None
    try:
        shown = URL(f"http://{name}").host if "xn--" in name.lower() else name
    except ValueError:
        shown = None
    if shown is None:
        raise ValueError("names a host that cannot exist: a part of it begins with xn-- and encodes no name")
