import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * A KTable of Kafka Streams holds the keys that each test vector expects of a reader that ignores headers, and a filter by key keeps every
 * marker out of a KStream. No broker is needed: TopologyTestDriver runs both.
 */
public class TableCheck {
    static final String TOPIC = "k8s.prod-eu-1.core.pods";

    static byte[] bytes(JsonNode text) {
        if (text.isNull()) return null;
        return text.isObject() ? Base64.getDecoder().decode(text.get("base64").asText()) : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        File[] files = new File(args[0]).listFiles((d, n) -> n.endsWith(".json"));
        Arrays.sort(files);
        int passed = 0;
        for (File file : files) {
            JsonNode vector = new ObjectMapper().readTree(file);
            JsonNode tables = vector.get("expect").get("table");
            boolean good = true;
            List<String> all = new ArrayList<>();
            for (JsonNode partition : vector.get("partitions")) {
                StreamsBuilder builder = new StreamsBuilder();
                builder.table(TOPIC, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()),
                    Materialized.<byte[], byte[]>as(Stores.inMemoryKeyValueStore("t")).withKeySerde(Serdes.ByteArray()).withValueSerde(Serdes.ByteArray()));
                List<String> sent = new ArrayList<>();
                builder.stream("copy", Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                    .filter((key, value) -> !new String(key, StandardCharsets.UTF_8).startsWith("%wr/"))
                    .foreach((key, value) -> sent.add(new String(key, StandardCharsets.UTF_8)));
                Properties settings = new Properties();
                settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "check");
                settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
                try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings)) {
                    var in = driver.createInputTopic(TOPIC, Serdes.ByteArray().serializer(), Serdes.ByteArray().serializer());
                    var copy = driver.createInputTopic("copy", Serdes.ByteArray().serializer(), Serdes.ByteArray().serializer());
                    for (JsonNode record : partition.get("records")) {
                        if (!record.get("key").isTextual()) continue; // of somebody else: keys of the contract are UTF-8
                        byte[] key = bytes(record.get("key"));
                        in.pipeInput(key, bytes(record.get("value")));
                        copy.pipeInput(key, bytes(record.get("value")));
                    }
                    var held = driver.<byte[], byte[]>getKeyValueStore("t").all();
                    while (held.hasNext()) all.add(new String(held.next().key, StandardCharsets.UTF_8));
                }
                if (sent.stream().anyMatch(key -> key.startsWith("%wr/"))) good = false;
            }
            TreeSet<String> expected = new TreeSet<>();
            for (JsonNode key : tables) expected.add(new String(bytes(key), StandardCharsets.UTF_8));
            good &= expected.equals(new TreeSet<>(all));
            if (good) passed++; else System.out.println(file.getName() + ": held " + new TreeSet<>(all) + ", expected " + expected);
        }
        System.out.println(passed + " of " + files.length + " vectors pass");
        if (passed != files.length) System.exit(1);
    }
}
