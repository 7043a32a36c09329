"""Configuration: the file, the environment and `--set` in; frozen `Settings`, or every problem with
its line and cure, out. It decides what a config means without asking a cluster or a broker, and
knows nothing of what runs by it."""

from watchrelay.config.loading import Loaded, find_file, load, load_settings
from watchrelay.config.settings import ResourceEntry, Settings
from watchrelay.config.sources import parse_set

__all__ = ["Loaded", "ResourceEntry", "Settings", "find_file", "load", "load_settings", "parse_set"]
