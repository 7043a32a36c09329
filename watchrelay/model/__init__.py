"""Values that packages share: resources, frames, changes, streams. They are built from the config,
from discovery and from what the API server sends, and need no clock, no socket and no setting."""
