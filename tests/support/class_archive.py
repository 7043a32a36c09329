"""`make real`: archives of the classes that brokers load, of which CI starts some 50.

A JVM that finds its classes parsed and verified (class data sharing) takes a second less of
processor for a start. A broker without an archive starts as well, so a failure here fails nothing.
"""

import fcntl
from typing import get_args

from tests.support.kafkabroker import KafkaBroker, Version
from tests.support.parts import class_archive, class_sharing, is_usable
from tests.support.process import PartError


def _make(version: Version) -> None:
    archive = class_archive(version)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if class_sharing(version):
            return
        made = archive.with_suffix(".new")
        flags = ("-Xmx512m", f"-XX:ArchiveClassesAtExit={made}")
        # A secured broker loads what a plain one loads, and the classes of TLS and SASL.
        with KafkaBroker(version, secured=True, jvm_flags=flags) as broker:
            broker.stop(grace_s=120.0)  # writes the archive
        if not is_usable(made, version):
            raise PartError(f"{made} is not usable, see `java -Xshare:on`")
        made.replace(archive)
        print(f"real parts: class archive of Kafka {version} in {archive}")


if __name__ == "__main__":
    for version in get_args(Version):
        try:
            _make(version)
        except (PartError, OSError) as error:
            print(f"real parts: no class archive of Kafka {version}, brokers start slower: {error}")
