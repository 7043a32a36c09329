"""Tokens for OAUTHBEARER: from a file, from a command, or signed for AWS MSK."""

from __future__ import annotations

import asyncio
import base64
import binascii
import importlib
import importlib.util
import json
import re
from collections.abc import Sequence
from typing import Final, Protocol

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError

from watchrelay.core import clock
from watchrelay.core.errors import SinkMisconfigured
from watchrelay.core.files import read_bounded
from watchrelay.core.programs import run_program
from watchrelay.kafka.client.client_log import hide

TOKEN_TIMEOUT_S: Final = 60.0
"""For a new token: a connection waits this time for it, beside the answers of the broker."""
_OUTPUT_BYTES_MAX = 64 * 1024
"""Tokens have a few kilobytes: brokers and proxies take no longer ones."""
_WRITER_S = 1.0
"""For the writer of a named pipe: nothing else turns in the daemon meanwhile."""
_EARLY_MS = 30_000
"""A token that expires within half a minute is replaced: the broker would close the connection
almost at once."""


_SIGNER = "aws_msk_iam_sasl_signer"
_NO_IDENTITY = (
    "neither environment, web identity, pod identity, profile nor node has credentials; "
    "on EKS give the pod's service account a role (the chart's serviceAccount.annotations)"
)
_LONG_WORD = re.compile(r"[\w.~+/=-]{24,}")
"""What a token or a key may look like in the complaint of a program: left out."""


def read_secret(path: str) -> str:
    """The text in a file of a secret. One without end, or a pipe without a writer, is neither
    taken into memory nor waited for.

    Raises: OSError, UnicodeDecodeError; ValueError for what is longer than any secret.
    """
    content = read_bounded(path, _OUTPUT_BYTES_MAX + 1, writer_s=_WRITER_S, silence_s=_WRITER_S)
    if len(content) > _OUTPUT_BYTES_MAX:
        raise ValueError(f"it holds more than {_OUTPUT_BYTES_MAX >> 10} KiB, which no secret has")
    return content.decode()


class TokenSource(Protocol):
    """Where tokens come from."""

    async def fetch(self) -> tuple[str, int]:
        """A token and when it ends (wall milliseconds; 0: do not keep it). Raises: OSError or
        ValueError in one plain line."""


class FileTokens:
    """The token in a file, read each time."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def fetch(self) -> tuple[str, int]:
        try:
            token = (await asyncio.to_thread(read_secret, self._path)).strip()
        except UnicodeDecodeError:
            raise ValueError(f"the token file {self._path} is not UTF-8") from None
        except OSError as error:
            raise ValueError(
                f"the token file {self._path} cannot be read: {error.strerror or error}"
            ) from None
        if not token:
            raise ValueError(f"the token file {self._path} is empty")
        return token, 0


class CommandTokens:
    """The token that a program prints; it is run again when the token ends (its `exp`, when it is a
    JWT)."""

    def __init__(self, command: Sequence[str], *, timeout_s: float = TOKEN_TIMEOUT_S) -> None:
        self._command = tuple(command)
        self._timeout_s = timeout_s

    async def fetch(self) -> tuple[str, int]:
        name = self._command[0]
        try:
            code, out, complaint = await run_program(
                self._command,
                timeout_s=self._timeout_s,
                stdout_bytes_max=_OUTPUT_BYTES_MAX,
                stderr=True,
            )
        except TimeoutError as error:
            raise ValueError(
                f"the token command {name} did not end within {self._timeout_s:g} s"
            ) from error
        if out is None:
            raise ValueError(
                f"the token command {name} printed more than {_OUTPUT_BYTES_MAX} bytes: it must "
                "print the token and nothing else"
            )
        if code:
            last = _LONG_WORD.sub(
                "...", "".join(complaint.decode(errors="replace").strip().splitlines()[-1:])
            )
            raise ValueError(f"the token command {name} ended with status {code}: {last[:200]}")
        token = out.decode(errors="replace").strip()
        if not token or len(token.split()) != 1:
            raise ValueError(f"the token command {name} must print the token and nothing else")
        return token, expiry_ms(token)


class MskTokens:
    """Tokens signed with the pod's AWS identity. Source: aws-msk-iam-sasl-signer-python,
    `MSKAuthTokenProvider`.

    Raises: SinkMisconfigured naming the extra to install when the signer is missing.
    """

    def __init__(self, region: str) -> None:
        if importlib.util.find_spec(_SIGNER) is None:
            message = (
                "kafka.security.mechanism AWS_MSK_IAM needs the signer of AWS, which is not "
                "installed"
            )
            raise SinkMisconfigured(f"{message}: pip install 'watchrelay[msk]'; the image has it")
        self._region = region

    async def fetch(self) -> tuple[str, int]:
        return await asyncio.to_thread(self._sign)

    def _sign(self) -> tuple[str, int]:
        """In a thread: the signer takes most of a second and 14 MiB to import, and asks services of
        AWS who we are."""
        signer = importlib.import_module(f"{_SIGNER}.MSKAuthTokenProvider")
        try:
            token, ends_ms = signer.generate_auth_token(self._region)
        except AttributeError as error:  # it looks for the key of no credentials (1.0.2)
            raise ValueError(f"AWS gave no identity to sign with: {_NO_IDENTITY}") from error
        except Exception as error:
            # botocore's errors share no base; each means that no token can be had
            raise ValueError(f"AWS gave no identity to sign with: {error}") from error
        return str(token), int(ends_ms)


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka carries no types
    """What aiokafka asks for a token on each connection: the held one while it is good, else a new
    one, fetched once for all."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._token = ""
        self._ends_ms = 0
        self._fetching = asyncio.Lock()

    async def token(self) -> str:
        """Raises: AuthenticationFailedError, the one kind that aiokafka takes for a failed
        connection rather than a bug."""
        async with self._fetching:
            if clock.wall_ms() >= self._ends_ms - _EARLY_MS:
                try:
                    self._token, self._ends_ms = await self._source.fetch()
                    hide(self._token)
                except (OSError, ValueError) as error:
                    raise AuthenticationFailedError(f"no token for OAUTHBEARER: {error}") from error
            return self._token


def expiry_ms(token: str) -> int:
    """When a JWT ends, in wall milliseconds; 0 when it is none or does not say. Nothing is
    verified: that is the broker's part."""
    parts = token.split(".")
    if len(parts) != 3:
        return 0
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return int(float(claims["exp"]) * 1000)
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError):
        return 0
