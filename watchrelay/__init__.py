"""watchrelay: every change of chosen Kubernetes resources, in order, on Kafka topics that prove
themselves."""

__version__ = "0.1.0"
