"""Settings from a file, the environment and flags: which of them counts, and how mistakes are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.config import ConfigError, Settings, declared, environment_name, flag_name, load
from millwheel.config.loading import line_of


def write(place: Path, text: str) -> Path:
    path = place / "millwheel.toml"
    path.write_text(text)
    return path


def problems(path: Path | None, environment: dict[str, str] | None = None, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environment, {name.replace("__", "."): text for name, text in flags.items()})
    return str(caught.value)


def test_without_anything_every_setting_has_its_default() -> None:
    loaded = load()
    assert loaded.settings == Settings(worker=loaded.settings.worker)
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.settings.coordinator.endpoints == ("127.0.0.1:2379",)


def test_environment_overrides_file_and_flags_override_both(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[store]\nkeyspace = "file"\nreplication = "3"\nlocal_dc = "dc1"\n[worker]\nprocesses = 2\n'
        '[coordinator]\nendpoints = ["a:1", "b:2"]\n',
    )
    environment = {"MILLWHEEL_STORE_KEYSPACE": "environment", "MILLWHEEL_STORE_REPLICATION": "5", "PATH": "/bin"}
    loaded = load(path, environment, {"store.replication": "7"})
    store = loaded.settings.store
    assert (store.keyspace, store.replication, store.local_dc) == ("environment", "7", "dc1")
    assert loaded.settings.worker.processes == 2
    assert loaded.settings.coordinator.endpoints == ("a:1", "b:2")
    assert loaded.sources["store.keyspace"] == "environment variable MILLWHEEL_STORE_KEYSPACE"
    assert loaded.sources["store.replication"] == "flag --store-replication"
    assert loaded.sources["store.local_dc"] == f"{path}:4"


def test_the_environment_names_the_file_unless_a_flag_does(tmp_path: Path) -> None:
    path = write(tmp_path, "[worker]\nprocesses = 3\n")
    loaded = load(None, {"MILLWHEEL_CONFIG": str(path)})
    assert (loaded.settings.worker.processes, loaded.file) == (3, path)


def test_lists_paths_and_booleans_from_text() -> None:
    environment = {
        "MILLWHEEL_COORDINATOR_ENDPOINTS": "a:1, b:2",
        "MILLWHEEL_RPC_INSECURE": "TRUE",
        "MILLWHEEL_WORKER_PACKAGES": "~/code",
    }
    settings = load(None, environment).settings
    assert settings.coordinator.endpoints == ("a:1", "b:2")
    assert settings.rpc.insecure is True
    assert settings.worker.packages == Path("~/code").expanduser()


def test_all_mistakes_are_reported_at_once_with_place_and_remedy(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[store]\nkeyspce = "a"\nreplication = 3\nkind = "casandra"\n\n'
        '[rpc]\ninsecure = "yes"\n\n[coordinater]\na = 1\n',
    )
    shown = problems(
        path, {"MILLWHEEL_STORE_KEYSPCE": "x", "MILLWHEEL_WORKER_PROCESSES": "many"}, worker__cache_mib="0"
    )
    assert "8 problems" in shown
    for part in (
        f"{path}:2: store.keyspce is unknown (did you mean 'keyspace'?): [store] has kind, contact_points,",
        f"{path}:3: store.replication is 3: it takes a string",
        f"{path}:4: store.kind is 'casandra': it takes \"cassandra\" or \"embedded\" (did you mean 'cassandra'?)",
        f"{path}:7: rpc.insecure is 'yes': it takes true or false",
        f"{path}:9: section [coordinater] is unknown (did you mean 'coordinator'?)",
        "environment variable MILLWHEEL_STORE_KEYSPCE: it names no setting (did you mean 'MILLWHEEL_STORE_KEYSPACE'?)",
        "environment variable MILLWHEEL_WORKER_PROCESSES: worker.processes is 'many': it takes a whole number",
        "flag --worker-cache-mib: worker.cache_mib is '0': it takes a whole number from 1 to 1048576",
    ):
        assert part in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[worker]\nprocesses = true\n", "worker.processes is True: it takes a whole number"),
        ("[worker]\nprocesses = 1.5\n", "worker.processes is 1.5: it takes a whole number"),
        ("[master]\nlease_seconds = inf\n", "it takes a finite number"),
        ("[coordinator]\nendpoints = []\n", "it takes one host:port or more"),
        ('[coordinator]\nendpoints = ["host"]\n', "it takes host:port"),
        ('[coordinator]\nendpoints = ["host:0"]\n', "port 0 is no port to connect to"),
        ("[coordinator]\nendpoints = [1]\n", "it takes a list of strings"),
        ('[rpc]\nlisten = "127.0.0.1:99999"\n', "it takes host:port"),
        ('[metrics]\nlisten = "on"\n', 'it takes host:port, such as 127.0.0.1:7433 or [::1]:7433, or "off"'),
        ('[store]\nkeyspace = "a b"\n', "it takes a name without spaces and slashes"),
        ("store = 1\n", "store is a section: write [store]"),
        ("store", "the file is not TOML"),
    ],
)
def test_what_a_setting_may_not_be(tmp_path: Path, text: str, shown: str) -> None:
    assert shown in problems(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none.toml'}: the file cannot be read: No such file" in problems(tmp_path / "none.toml")


def test_a_secret_is_in_no_message(tmp_path: Path) -> None:
    shown = problems(write(tmp_path, "[store]\npassword = 12345\n"))
    assert "12345" not in shown
    assert "store.password is what is given: it takes a string" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            '[rpc]\nlisten = "0.0.0.0:7433"\n',
            "rpc.listen (",
        ),
        ('[metrics]\nlisten = "10.0.0.1:9433"\n', "metrics.listen ("),
        ('[rpc]\nlisten = "[::]:1"\ninsecure = true\n', "rpc.advertise (default): is missing: others cannot connect"),
        ('[rpc]\ntls_cert = "a.pem"\n', "rpc.tls_key (default): is missing: TLS is mutual"),
        ('[store]\nkind = "embedded"\n', "store.path (default): is missing"),
        ('[store]\ntls_cert = "a"\ntls_ca = "b"\n', "store.tls_key (default): is missing"),
        (
            '[store]\nkind = "embedded"\npath = "p"\n[worker]\nprocesses = 2\n',
            "an embedded store or coordinator serves one process alone",
        ),
    ],
)
def test_contradicting_settings_are_refused(tmp_path: Path, text: str, shown: str) -> None:
    assert shown in problems(write(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        '[rpc]\nlisten = "0.0.0.0:7433"\nadvertise = "h"\ninsecure = true\n',
        '[rpc]\nlisten = "0.0.0.0:7433"\nadvertise = "h:1"\ntls_cert = "a"\ntls_key = "b"\ntls_ca = "c"\n',
        '[rpc]\nlisten = "localhost:7433"\n',
        '[rpc]\nlisten = "127.1.2.3:7433"\n',
        '[rpc]\nlisten = "[::1]:7433"\n',
    ],
)
def test_listening_beyond_loopback_needs_tls_or_insecure(tmp_path: Path, text: str) -> None:
    load(write(tmp_path, text))


def test_names_in_the_environment_and_of_flags() -> None:
    known = {one.path: one for one in declared(Settings)}
    assert environment_name(known["store.contact_points"]) == "MILLWHEEL_STORE_CONTACT_POINTS"
    assert flag_name(known["coordinator.endpoints"]) == "--coordinator-endpoints"


def test_every_default_is_allowed() -> None:
    for one in declared(Settings):
        assert one.checked(one.default) == one.default
        assert one.meaning.endswith(".")
        assert one.takes


def test_each_settings_line_in_the_file_is_found() -> None:
    text = '# a comment\nlogging.level = "info"\n\n[store]\n"keyspace" = "a"\n[ rpc ]\nlisten="x"\n'
    assert line_of(text, "logging", "level") == 2
    assert line_of(text, "store", "") == 4
    assert line_of(text, "store", "keyspace") == 5
    assert line_of(text, "rpc", "listen") == 7
    assert line_of(text, "logging", "") == 2
    assert line_of(text, "store", "listen") == 0


def test_values_that_no_python_type_holds_are_named_mistakes(tmp_path: Path) -> None:
    """Regression: such a value ended the daemon with a traceback."""
    shown = problems(write(tmp_path, f"[worker]\nlease_seconds = {'9' * 400}\n"))
    assert "millwheel.toml:2" in shown
    assert "a finite number" in shown
    assert "nests" in problems(write(tmp_path, "[worker]\nlease_seconds = " + "[" * 5_000))
    assert "takes a path" in problems(write(tmp_path, '[worker]\npackages = "~nobody-of-this-name/x"\n'))
    assert "NUL" in problems(write(tmp_path, '[worker]\npackages = "a\\u0000b"\n'))
