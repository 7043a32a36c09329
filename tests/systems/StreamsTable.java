import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/**
 * `StreamsTable HOST:PORT TOPIC RECORDS DIRECTORY`: a KTable of the topic, and a KStream without its markers, until the stream has taken so
 * many records; then name and phase by key as JSON.
 */
public class StreamsTable {
    public static void main(String[] args) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        AtomicLong taken = new AtomicLong();
        builder.table(args[1], Consumed.with(Serdes.String(), Serdes.ByteArray()), Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as("pods"))
            .toStream()
            .foreach((key, value) -> {});
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "watchrelay-check");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[3]);
        settings.put("auto.offset.reset", "earliest");
        StreamsBuilder copy = new StreamsBuilder();
        copy.stream(args[1], Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .filter((key, value) -> !key.startsWith("%wr/"))
            .foreach((key, value) -> taken.incrementAndGet());
        Properties others = (Properties) settings.clone();
        others.put(StreamsConfig.APPLICATION_ID_CONFIG, "watchrelay-check-stream");
        try (KafkaStreams table = new KafkaStreams(builder.build(), settings); KafkaStreams stream = new KafkaStreams(copy.build(), others)) {
            table.start();
            stream.start();
            while (taken.get() < Long.parseLong(args[2]) || table.state() != KafkaStreams.State.RUNNING || behind(table)) Thread.sleep(200);
            Map<String, Object> held = new TreeMap<>();
            try (var rows = table.store(StoreQueryParameters.fromNameAndType("pods", QueryableStoreTypes.<String, byte[]>keyValueStore())).all()) {
                while (rows.hasNext()) {
                    var row = rows.next();
                    JsonNode pod = new ObjectMapper().readTree(row.value);
                    held.put(row.key, new Object[] {pod.at("/metadata/name").textValue(), pod.at("/status/phase").textValue()});
                }
            }
            System.out.println(new ObjectMapper().writeValueAsString(held));
            System.exit(taken.get() == Long.parseLong(args[2]) ? 0 : 1);
        }
    }

    static boolean behind(KafkaStreams table) {
        return table.metrics().entrySet().stream()
            .filter(each -> each.getKey().name().equals("records-lag"))
            .mapToDouble(each -> ((Number) each.getValue().metricValue()).doubleValue())
            .peek(each -> {}).sum() > 0;
    }
}
