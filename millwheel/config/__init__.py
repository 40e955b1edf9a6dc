"""Settings from a TOML file, environment variables and flags; later ones win. Every value has its source."""

from millwheel.config.declaring import Setting, declared
from millwheel.config.errors import ConfigError
from millwheel.config.loading import Configuration, environment_name, flag_name, load
from millwheel.config.sections import (
    AuthoritySection,
    ClusterSection,
    CoordinatorSection,
    LoggingSection,
    MasterSection,
    MetricsSection,
    OtlpSection,
    RpcSection,
    Settings,
    StoreSection,
    WorkerSection,
)

__all__ = [
    "AuthoritySection",
    "ClusterSection",
    "ConfigError",
    "Configuration",
    "CoordinatorSection",
    "LoggingSection",
    "MasterSection",
    "MetricsSection",
    "OtlpSection",
    "RpcSection",
    "Setting",
    "Settings",
    "StoreSection",
    "WorkerSection",
    "declared",
    "environment_name",
    "flag_name",
    "load",
]
