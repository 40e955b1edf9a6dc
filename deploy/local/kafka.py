"""A Kafka broker on loopback, with a controller of its own. It can be killed, paused and restarted."""

from __future__ import annotations

import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

from deploy.local import jars
from deploy.local.apt import InstallError
from deploy.local.child import ChildProcess, StoppedAtExit, free_ports, listens

__all__ = ["KafkaBroker"]

_START: Final = 120.0
"""Seconds within which the broker must accept clients, on a machine with other load."""
_USER: Final = "millwheel"
_PASSWORD: Final = "not-secret"  # of a broker on loopback


class KafkaBroker(StoppedAtExit):
    """One broker. It keeps its ports and data when it is stopped and started again.

    Its controller is a process of its own, as in production, and runs on while the broker is killed. A process that is
    both takes up its former leaderships before it knows the metadata. It then takes the partitions of a committed
    transaction for deleted, and drops the markers: the records stay uncommitted for ever (seen with Kafka 4.3.1).

    Usable with ``with``. The kernel kills both processes if they still run when this process ends.
    """

    def __init__(
        self, directory: Path, *, heap_mebibytes: int = 256, properties: Mapping[str, object] | None = None
    ) -> None:
        """Does not start the broker. ``properties``: more of its configuration."""
        self.directory = directory.resolve()
        plain, password, controller = free_ports(3)
        self.address = f"127.0.0.1:{plain}"
        """``host:port`` for clients."""
        self.password_address = f"127.0.0.1:{password}"
        """``host:port`` for clients that show a password."""
        self.password_settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _USER,
            "sasl.password": _PASSWORD,
        }
        """Properties of clients for that address."""
        common, roles = self._common(controller), self._roles(controller)
        self._properties = {name: {**common, **own, **(properties or {})} for name, own in roles.items()}
        self._java = [
            *(str(jars.find_java()), f"-Xmx{heap_mebibytes}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"),
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss,SSS",
            *("-cp", f"{jars.install(jars.KAFKA)}/*"),
        ]
        self._controller, self._process = (
            ChildProcess([*self._java, "kafka.Kafka", str(self._file(name))], self.directory / f"{name}.log")
            for name in ("controller", "broker")
        )

    def _roles(self, controller: int) -> dict[str, dict[str, object]]:
        """What each of both processes has for itself."""
        return {
            "controller": {
                "node.id": 1,
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{controller}",
                "log.dirs": self.directory / "controller-data",
            },
            "broker": {
                "node.id": 2,
                "process.roles": "broker",
                "listeners": f"PLAINTEXT://{self.address},SASL_PLAINTEXT://{self.password_address}",
                "log.dirs": self.directory / "broker-data",
            },
        }

    def _common(self, controller: int) -> dict[str, object]:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} required user_{_USER}="{_PASSWORD}";',
            # There is one broker, and few clients.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            # A broker that was killed registers again when its former life has expired.
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 500,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
        }

    @property
    def log(self) -> Path:
        """The file with the broker's output, over all its starts."""
        return self._process.log

    def start(self) -> None:
        """Start the broker, and wait until it accepts clients."""
        self.launch()
        end = time.monotonic() + _START
        while not self.serves():
            if not self._process.is_running or time.monotonic() > end:
                ended = "does not serve" if self._process.is_running else "has ended"
                raise RuntimeError(f"Kafka {ended}; {self.log} ends with:\n{self._process.last_lines(20)}")
            time.sleep(0.05)

    def launch(self) -> None:
        """Start what does not run. The broker accepts clients some seconds later."""
        if not self._file("broker").exists():
            self._format()
        self._controller.start()
        self._process.start()

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.properties"

    def _format(self) -> None:
        """Prepare the folders of the data, as Kafka demands before the first start."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # An id that began with "-" would be an option of the command.
        cluster = "K" + urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()[1:]
        for name, properties in self._properties.items():
            draft = self._file(name).with_suffix(".draft")
            draft.write_text("".join(f"{one}={value}\n" for one, value in properties.items()))
            command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(draft)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise InstallError(f"Kafka cannot prepare {self.directory}: {done.stdout}{done.stderr}")
            draft.rename(self._file(name))

    def serves(self) -> bool:
        """Whether the broker accepts connections. It listens for clients when it is ready for them."""
        host, port = self.address.split(":")
        return listens(host, int(port)) and self._process.is_running

    def stop(self) -> None:
        """Stop both processes. Their data stay."""
        self._process.stop()
        self._controller.stop()

    def kill(self) -> None:
        """SIGKILL the broker. Its data stay."""
        self._process.kill()

    def pause(self) -> None:
        """Pause the broker. Its connections stay open, and it does not respond."""
        self._process.pause()

    def resume(self) -> None:
        """End the broker's pause."""
        self._process.resume()
