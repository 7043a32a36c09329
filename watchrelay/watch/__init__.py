"""Lists and watches one resource. In: pages of lists, frames (decoded lines of a watch). Out:
objects in order, delivered before the cursor moves past them. It knows neither what an object
contains, nor Kafka."""
