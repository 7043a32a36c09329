"""Lists and watches one resource. In: pages and frames of the API server. Out: events in order,
each delivered before the cursor moves past it. It knows neither what an object contains, nor
Kafka."""
