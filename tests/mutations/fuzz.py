"""`Step`: faults of the readers of others' bytes, which the fuzz tests must find by themselves."""

from __future__ import annotations

from tests.mutations.step import Step

_HOSTILE = "tests/properties/test_hostile.py"
_SHAPES = "tests/properties/test_misshapen.py"
_TABLE = "tests/unit/config/test_bad_input.py"
_FILES = "tests/unit/config/test_unreadable_files.py"
"""Beside the fuzz tests, which cannot know of each legal text what it should have meant."""
_CUT = "tests/properties/test_stream.py"


def _of(tests: tuple[str, ...], file: str, rows: dict[str, tuple[str, str]]) -> tuple[Step, ...]:
    return tuple(
        Step(f"{file}: {name}", tests, ((file, old, new),), may_raise=True)
        for name, (old, new) in rows.items()
    )


_SPLITTER = _of(
    (_CUT, f"{_HOSTILE}::test_whatever_a_watch_brings_is_frames_and_failures_of_one_line"),
    "watchrelay/kube/stream.py",
    {
        "the first line end of a chunk is taken for the last": (
            'end = chunk.rfind(b"\\n")',
            'end = chunk.find(b"\\n")',
        ),
        "what was kept is kept twice": (
            "                self._parts.clear()\n                self._held = 0\n",
            "                self._held = 0\n",
        ),
        "a byte behind a line end": (
            "self._parts.append(chunk[end + 1 :])",
            "self._parts.append(chunk[end + 2 :])",
        ),
        "lines end where Python says": (
            'for part in block.split(b"\\n"):',
            "for part in block.decode(errors='replace').splitlines():",
        ),
        "strings are not looked at": (
            (
                "            if not block.isascii():\n                block.decode()  # msgspec "
                "leaves the strings in a Raw unchecked\n"
            ),
            "",
        ),
        "a key that occurs twice": (
            "                if blanks and not _has_usual_blanks(block, begin, blanks, fields):",
            "                if False:",
        ),
        "a key that occurs twice in one line": (
            "compact_size(outer) != len(line) and refuse_duplicates(line, outer)",
            "False",
        ),
        "an end that is no end": (
            "            self.ended = True\n            return Failure(status",
            "            return Failure(status",
        ),
        "half a line at the end": (
            "        except BROKEN_JSON:\n            return []\n        return self._care",
            "        except BROKEN_JSON:\n            pass\n        return self._care",
        ),
    },
)

_DECODER = _of(
    (
        f"{_HOSTILE}::test_every_header_is_read_as_it_is_or_refused_whatever_it_holds",
        f"{_HOSTILE}::test_every_body_is_read_as_it_is_or_refused",
        f"{_HOSTILE}::test_whatever_is_on_a_topic_is_a_record_or_refused",
    ),
    "watchrelay/contract/records.py",
    {
        "a number may have signs and blanks": (
            "if not text.isdigit() or len(text) > _DIGITS_MAX:",
            "if len(text) > _DIGITS_MAX:",
        ),
        "a number without end": (
            "if not text.isdigit() or len(text) > _DIGITS_MAX:",
            "if not text.isdigit():",
        ),
        "an offset that nothing can be at": (
            "if (offset := _number(text)) > _OFFSET_MAX:",
            "if (offset := _number(text)) > _OFFSET_MAX * 2:",
        ),
        "an epoch that nothing can be above": (
            "if (epoch := _number(text)) > EPOCH_MAX:",
            "if (epoch := _number(text)) > EPOCH_MAX << 8:",
        ),
        "a hash that is none": (
            'if len(text) != 16 or not text.isalnum() or text[1] in b"xX":',
            "if len(text) != 16:",
        ),
        "a hash of another length": ("if len(text) != 16 or not", "if not"),
        "a marker under another key": (
            "if value is not None or shape != ",
            "if value is not None or not shape or b'' == ",
        ),
        "a marker with a value": ("if value is not None or shape != ", "if shape != "),
        "a delete that holds an object": (
            '            if value is not None:\n                raise RecordRefused("a delete',
            '            if False:\n                raise RecordRefused("a delete',
        ),
        "an object without a value": (
            '        if value is None:\n            raise RecordRefused(f"type',
            '        if False:\n            raise RecordRefused(f"type',
        ),
        "a key that is no text": ("        if not key.isascii():\n            key.decode()\n", ""),
        "headers without a value": (
            "    except (AttributeError, TypeError) as error:",
            "    except AttributeError as error:",
        ),
        "a missing header": (
            '    except KeyError as error:\n        raise RecordRefused(f"header',
            '    except IndexError as error:\n        raise RecordRefused(f"header',
        ),
    },
)

_CONFIGS = (
    *_of(
        (
            f"{_SHAPES}::test_a_kubeconfig_of_any_shape_is_a_user_or_mistakes_that_name_file_and_line",
            f"{_HOSTILE}::test_whatever_a_kubeconfig_holds_is_a_user_or_mistakes_that_repeat_no_secret",
        ),
        "watchrelay/kube/auth/kubeconfig.py",
        {
            "a value of any kind": (
                "if value is not None and not isinstance(value, kind):",
                "if False:",
            ),
            "a mapping of any kind": (
                (
                    "if not isinstance(value, dict) or not all(isinstance(name, str) for name in "
                    "value):"
                ),
                "if False:",
            ),
            "texts of any kind": (
                (
                    "if not isinstance(value, list) or not all(isinstance(item, str) for item in "
                    "value):"
                ),
                "if not isinstance(value, list):",
            ),
            "the token in its repr": (
                'token: str = field(default="", repr=False)',
                'token: str = ""',
            ),
            "bytes that are no text": (
                '    except UnicodeDecodeError:\n        raise ConfigError.of("is not UTF-8"',
                '    except EOFError:\n        raise ConfigError.of("is not UTF-8"',
            ),
            "a control character in a group": (
                '        if not value.isprintable():\n            section.refuse(\n                "as"',
                '        if False:\n            section.refuse(\n                "as"',
            ),
        },
    ),
    *_of(
        (
            f"{_HOSTILE}::test_whatever_a_config_holds_is_settings_or_mistakes",
            f"{_HOSTILE}::test_whatever_a_kubeconfig_holds_is_a_user_or_mistakes_that_repeat_no_secret",
            f"{_HOSTILE}::test_a_yaml_bomb_is_refused_with_one_line_wherever_yaml_is_read",
            _TABLE,
            _FILES,
        ),
        "watchrelay/config/tree.py",
        {
            "an alias that nobody made": (
                "                if anchor not in anchors:",
                "                if False:",
            ),
            "an anchor that is defined twice": (
                "elif anchor and (anchor in anchors or anchor in opened):",
                "elif False:",
            ),
            "no measure of values": ("        if self._count > NODES_MAX:", "        if False:"),
            "no measure of depth": (
                "        if depth > DEPTH_MAX:",
                "        if False:",
            ),
            "several documents": (
                "elif isinstance(event, DocumentStartEvent) and count > 1:",
                "elif False:",
            ),
            "a key that is no text": (
                "            if not isinstance(key, yaml.ScalarNode):\n",
                "            if False:\n",
            ),
            "a merge of what is no mapping": (
                "                if isinstance(source, dict):",
                "                if True:",
            ),
        },
    ),
    *_of(
        (
            f"{_SHAPES}::test_a_config_of_any_shape_is_settings_or_mistakes_that_name_the_file",
            f"{_HOSTILE}::test_whatever_a_config_holds_is_settings_or_mistakes",
            _TABLE,
            _FILES,
        ),
        "watchrelay/config/loading.py",
        {
            "bytes that are no text": (
                "    except UnicodeDecodeError as error:",
                "    except EOFError as error:",
            ),
            "a top that is no mapping": (
                "    if not isinstance(tree.value, dict):",
                "    if False:",
            ),
            "what is broken is not set aside": (
                "            broken.add(_set_aside(raw, path))\n",
                "            broken.add(path)\n",
            ),
        },
    ),
)

FUZZ: tuple[Step, ...] = (*_SPLITTER, *_DECODER, *_CONFIGS)
