"""The window: metrics, logs, health and status, for the people who keep this running."""
