// A reader of watchrelay's topics on plain kafka-clients, written from docs/record-contract.md, section 5. JDK 17, jackson for JSON.
//
//   java -cp 'jars/*' Reader.java live localhost:9092 k8s.prod.core.pods     state and digest of every stream, one JSON object a line
//   java -cp 'jars/*' Reader.java vectors tests/vectors                      certifies itself: exit code 0 when every vector agrees
//
// The part to take over into a consumer is `Replica`: one per stream and partition. `StreamReplicas` shows how streams share a partition.

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class Reader {
  static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    if (args.length == 2 && args[0].equals("vectors")) {
      System.exit(Vectors.run(Path.of(args[1])) ? 0 : 1);
    } else if (args.length >= 3 && args[0].equals("live")) {
      System.exit(Live.run(args[1], Arrays.asList(args).subList(2, args.length)) ? 0 : 1);
    }
    System.err.println("usage: Reader vectors DIRECTORY | Reader live BOOTSTRAP TOPIC...");
    System.exit(2);
  }

  // ---- what a record says (section 3) -------------------------------------------------------------------------------

  enum Kind { ADDED, MODIFIED, READ, DELETED, CLAIM, BEGIN, END, HEARTBEAT }

  static final Map<String, Kind> KINDS = Map.of(
      "dev.watchrelay.object.added.v1", Kind.ADDED,
      "dev.watchrelay.object.modified.v1", Kind.MODIFIED,
      "dev.watchrelay.object.read.v1", Kind.READ,
      "dev.watchrelay.object.deleted.v1", Kind.DELETED,
      "dev.watchrelay.claim.v1", Kind.CLAIM,
      "dev.watchrelay.snapshot.begin.v1", Kind.BEGIN,
      "dev.watchrelay.snapshot.end.v1", Kind.END,
      "dev.watchrelay.heartbeat.v1", Kind.HEARTBEAT);

  /** A record that is not of this contract: skip it, count it, say so. */
  static final class Refused extends Exception {
    Refused(String why) {
      super(why, null, false, false);
    }
  }

  /** What a record says. `object` is the object's JSON in every format; `hash` and `digest` are unsigned 64-bit numbers. */
  static final class Decoded {
    Kind kind;
    String stream;
    long epoch;
    BigInteger sequence;
    String key;
    byte[] object;
    long hash;
    BigInteger count;
    long digest;
    String frontier = "0";
    String snapshot = "";
    BigInteger beginSequence;
    Long snapshotOffset;
    long partitions;

    boolean isObject() {
      return kind == Kind.ADDED || kind == Kind.MODIFIED || kind == Kind.READ || kind == Kind.DELETED;
    }
  }

  /** What the contract requires of a record that counts (section 3, "Judging"); any other one is ignored. */
  static Decoded understand(byte[] key, byte[] value, Map<String, byte[]> headers) throws Refused {
    Kind kind = headers.get("ce_type") == null ? null : KINDS.get(text(headers.get("ce_type")));
    if (kind == null || key == null || headers.get("ce_wrstream") == null) {
      throw new Refused("not a record of this contract version");
    }
    Decoded decoded = new Decoded();
    decoded.kind = kind;
    decoded.key = text(key);
    decoded.stream = need(headers, "ce_wrstream");
    decoded.epoch = number(headers, "ce_wrepoch", EPOCH_MAX);
    decoded.sequence = digits(need(headers, "ce_sequence"));
    need(headers, "ce_time");
    if (decoded.isObject()) {
      understandObject(decoded, key, value, headers);
    } else {
      understandMarker(decoded, value, headers);
    }
    return decoded;
  }

  private static void understandObject(Decoded decoded, byte[] key, byte[] value, Map<String, byte[]> headers) throws Refused {
    String trimmed = headers.containsKey("ce_wrtrimmed") ? need(headers, "ce_wrtrimmed") : "";
    if (!REASONS.contains(need(headers, "ce_wrreason")) || !TRIMMED.contains(trimmed)) {
      throw new Refused("a reason or a form that this version does not know");
    }
    if (decoded.kind == Kind.DELETED) {
      String type = headers.containsKey("content-type") ? need(headers, "content-type") : "application/json";
      if (value != null && unwrap(type, value) != null) {
        throw new Refused("a delete with an object");
      }
      return;
    }
    decoded.object = value == null ? null : unwrap(need(headers, "content-type"), value);
    if (decoded.object == null) {
      throw new Refused("an upsert without an object");
    }
    need16(headers, "ce_wrhash");
    decoded.hash = contentHash(key, decoded.object); // of what is held, so that the digest proves it
  }

  private static void understandMarker(Decoded decoded, byte[] value, Map<String, byte[]> headers) throws Refused {
    int cut = decoded.key.lastIndexOf('/');
    String shape = "%wr/" + decoded.kind.name().toLowerCase(Locale.ROOT) + "/" + decoded.stream;
    if (value != null || cut < 0 || !decoded.key.substring(0, cut).equals(shape)) {
      throw new Refused("a marker whose key or value is not a marker's");
    }
    decoded.partitions = number(headers, "ce_wrpartitions", PARTITIONS_MAX);
    if (digits(decoded.key.substring(cut + 1)).compareTo(BigInteger.valueOf(decoded.partitions)) >= 0) {
      throw new Refused("a partition that the stream does not have");
    }
    need(headers, "ce_wrconfig");
    if (decoded.kind != Kind.CLAIM) {
      decoded.count = digits(need(headers, "ce_wrcount"));
      decoded.digest = need16(headers, "ce_wrdigest");
      decoded.frontier = need(headers, "ce_wrrv");
    }
    if (decoded.kind == Kind.BEGIN || decoded.kind == Kind.END) {
      decoded.snapshot = need(headers, "ce_wrsnap");
    }
    if (decoded.kind == Kind.END) {
      decoded.beginSequence = digits(need(headers, "ce_wrbegin"));
      decoded.snapshotOffset = number(headers, "ce_wrbeginoff", Long.MAX_VALUE);
    } else if (decoded.kind == Kind.HEARTBEAT && headers.containsKey("ce_wrlastsnapoff")) {
      decoded.snapshot = need(headers, "ce_wrlastsnap");
      decoded.snapshotOffset = number(headers, "ce_wrlastsnapoff", Long.MAX_VALUE);
    }
  }

  private static final long EPOCH_MAX = (1L << 53) - 1;
  private static final long PARTITIONS_MAX = 100_000;
  private static final Set<String> REASONS = Set.of("watch", "relist", "resume", "conflated", "snapshot", "healed");
  private static final Set<String> TRIMMED = Set.of("", "fields", "stub");
  private static final Pattern DIGITS = Pattern.compile("[0-9]{1,20}");
  private static final Pattern HEX = Pattern.compile("[0-9a-fA-F]{16}");

  /** Digits alone, 20 at most: such a number may be above 2^64. */
  static BigInteger digits(String text) throws Refused {
    if (!DIGITS.matcher(text).matches()) {
      throw new Refused("a number of other characters than 1 to 20 digits");
    }
    return new BigInteger(text);
  }

  static long number(Map<String, byte[]> headers, String name, long max) throws Refused {
    BigInteger number = digits(need(headers, name));
    if (number.compareTo(BigInteger.valueOf(max)) > 0) {
      throw new Refused("header " + name + " exceeds " + max);
    }
    return number.longValue();
  }

  static String need(Map<String, byte[]> headers, String name) throws Refused {
    byte[] value = headers.get(name);
    if (value == null) {
      throw new Refused("header " + name + " is missing");
    }
    return text(value);
  }

  static long need16(Map<String, byte[]> headers, String name) throws Refused {
    String digits = need(headers, name);
    if (!HEX.matcher(digits).matches()) {
      throw new Refused("header " + name + " is not 16 hex digits");
    }
    return Long.parseUnsignedLong(digits, 16);
  }

  static String text(byte[] bytes) throws Refused {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
    } catch (CharacterCodingException error) {
      throw new Refused("a key or header that is not UTF-8");
    }
  }

  static String hex(long number) {
    return String.format("%016x", number);
  }

  /** First 8 bytes of SHA-256(key, one zero byte, object), big-endian. */
  static long contentHash(byte[] key, byte[] object) {
    try {
      MessageDigest sha = MessageDigest.getInstance("SHA-256");
      sha.update(key);
      sha.update((byte) 0);
      return ByteBuffer.wrap(sha.digest(object)).getLong();
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }

  private static final byte[] CHANGE_PREFIX = "{\"before\":".getBytes(StandardCharsets.UTF_8);
  private static final Set<String> OPERATIONS = Set.of("\"c\"", "\"u\"", "\"d\"", "\"r\"");

  /** The object's own bytes: the value itself, `data` of a structured CloudEvent, or `after` of a Debezium change. Null: there is none. */
  static byte[] unwrap(String contentType, byte[] value) throws Refused {
    if (contentType.equals("application/cloudevents+json")) {
      try {
        Map<String, byte[]> event = members(value);
        if (!"\"1.0\"".equals(raw(event.get("specversion")))) {
          throw new Refused("a CloudEvent of another specversion");
        }
        return object(event.get("data"));
      } catch (IOException error) {
        throw new Refused("the value is not a CloudEvent");
      }
    }
    if (!contentType.equals("application/json")) {
      throw new Refused("content-type " + contentType);
    }
    if (value.length >= CHANGE_PREFIX.length && Arrays.equals(Arrays.copyOf(value, CHANGE_PREFIX.length), CHANGE_PREFIX)) {
      try {
        Map<String, byte[]> change = members(value);
        if (OPERATIONS.contains(raw(change.get("op"))) && change.containsKey("after") && !change.containsKey("kind")) {
          return object(change.get("after"));
        }
      } catch (IOException error) {
        return value; // no change: what begins so by chance
      }
    }
    return value;
  }

  private static String raw(byte[] json) {
    return json == null ? "" : new String(json, StandardCharsets.UTF_8);
  }

  private static byte[] object(byte[] json) {
    return raw(json).equals("null") ? null : json;
  }

  private static final JsonFactory PARSERS = new JsonFactory();

  /** The members of one JSON object by name, each with its bytes exactly as they stand; of a name that occurs twice the last. */
  static Map<String, byte[]> members(byte[] json) throws IOException {
    try (JsonParser parser = PARSERS.createParser(json)) {
      if (parser.nextToken() != JsonToken.START_OBJECT) {
        throw new IOException("not an object");
      }
      Map<String, byte[]> found = new HashMap<>();
      while (parser.nextToken() == JsonToken.FIELD_NAME) {
        String name = parser.currentName();
        JsonToken token = parser.nextToken();
        int from = (int) parser.currentTokenLocation().getByteOffset();
        parser.skipChildren();
        if (token == JsonToken.VALUE_STRING) {
          parser.getText(); // strings are read lazily: only now the parser is behind it
        }
        found.put(name, Arrays.copyOfRange(json, from, (int) parser.currentLocation().getByteOffset()));
      }
      if (parser.currentToken() != JsonToken.END_OBJECT || parser.nextToken() != null) {
        throw new IOException("not one object");
      }
      return found;
    }
  }

  // ---- the reader of one stream in one partition (section 5) --------------------------------------------------------

  /** An object as last published. */
  record ObjectState(byte[] object, long hash, long epoch, BigInteger sequence) {
    boolean olderThan(long otherEpoch, BigInteger otherSequence) {
      return epoch < otherEpoch || (epoch == otherEpoch && sequence.compareTo(otherSequence) < 0);
    }
  }

  /** What a record did. `back` is not null when the partition is to be read again from there; -1 is its start. */
  record Verdict(String word, Long back) {
    static Verdict of(String word) {
      return new Verdict(word, null);
    }
  }

  static final class State {
    private static final Pattern SNAPSHOT_ID = Pattern.compile("(\\d{1,18})-(\\d{1,18})");
    long epoch;
    BigInteger last = BigInteger.ZERO;
    boolean proven;
    /** A marker agreed that describes a whole state, no part of the first snapshot. */
    boolean complete;
    long digest;
    String startedIn;
    final Map<String, ObjectState> held = new TreeMap<>();

    State(String startedIn) {
      this.startedIn = startedIn;
    }

    /** Null when the record counts. */
    String admit(Decoded decoded) {
      if (decoded.epoch < epoch) {
        return "former";
      }
      if (decoded.epoch > epoch) {
        epoch = decoded.epoch;
        last = BigInteger.ZERO;
      }
      if (decoded.sequence.compareTo(last) <= 0) {
        return "duplicate";
      }
      if (decoded.sequence.compareTo(last.add(BigInteger.ONE)) > 0) {
        proven = false;
      }
      last = decoded.sequence;
      return null;
    }

    void put(Decoded decoded) {
      ObjectState before = decoded.kind == Kind.DELETED
          ? held.remove(decoded.key)
          : held.put(decoded.key, new ObjectState(decoded.object, decoded.hash, decoded.epoch, decoded.sequence));
      digest += (decoded.kind == Kind.DELETED ? 0 : decoded.hash) - (before == null ? 0 : before.hash);
    }

    boolean agrees(Decoded marker) {
      return BigInteger.valueOf(held.size()).equals(marker.count) && digest == marker.digest;
    }

    /** Judge from here on, if this marker is behind the end of the snapshot started in, which may have been compacted away. */
    void reached(Decoded marker) {
      boolean named = marker.kind == Kind.HEARTBEAT && marker.snapshotOffset != null;
      if (marker.kind == Kind.END || (named && (marker.snapshot.equals(startedIn) || later(marker.snapshot, startedIn)))) {
        startedIn = "";
      }
    }

    private static boolean later(String snapshot, String than) {
      Matcher one = SNAPSHOT_ID.matcher(snapshot);
      Matcher other = SNAPSHOT_ID.matcher(than);
      if (!one.matches() || !other.matches()) {
        return false;
      }
      int epochs = Long.compare(Long.parseLong(one.group(1)), Long.parseLong(other.group(1)));
      return epochs > 0 || (epochs == 0 && Long.parseLong(one.group(2)) > Long.parseLong(other.group(2)));
    }

    /** How many keys older than the end's begin were removed; -1: what would be left is not what the writer holds, nothing was. */
    int sweep(Decoded end) {
      List<String> older = new ArrayList<>();
      long left = digest;
      for (Map.Entry<String, ObjectState> entry : held.entrySet()) {
        if (entry.getValue().olderThan(end.epoch, end.beginSequence)) {
          older.add(entry.getKey());
          left -= entry.getValue().hash;
        }
      }
      if (!BigInteger.valueOf(held.size() - older.size()).equals(end.count) || left != end.digest) {
        return -1;
      }
      older.forEach(held::remove);
      digest = left;
      return older.size();
    }
  }

  static final class Replica {
    State shown;
    State second;
    private long failedEpoch;
    private BigInteger failedSequence = BigInteger.ZERO;
    private final Set<String> tried = new HashSet<>();
    private String lastSnapshot = "";
    private Long lastSnapshotOffset;

    Replica(String startedIn) {
      shown = new State(startedIn);
    }

    Verdict apply(Decoded decoded) {
      State state = second != null ? second : shown;
      String ignored = state.admit(decoded);
      if (ignored != null) {
        return Verdict.of(ignored);
      }
      if (decoded.isObject()) {
        state.put(decoded);
        return Verdict.of(state == shown ? "changed" : "noted");
      }
      return decoded.kind == Kind.CLAIM ? Verdict.of("noted") : judge(state, decoded);
    }

    private Verdict judge(State state, Decoded marker) {
      if (marker.snapshotOffset != null) {
        lastSnapshot = marker.snapshot;
        lastSnapshotOffset = marker.snapshotOffset;
      }
      int swept = state.agrees(marker) ? 0 : -1;
      if (marker.kind == Kind.END) {
        swept = swept < 0 ? state.sweep(marker) : swept;
      }
      state.reached(marker);
      state.proven = swept >= 0;
      if (!state.proven) {
        return state.startedIn.isEmpty() ? failed(marker) : Verdict.of("noted");
      }
      state.complete |= marker.kind == Kind.END || marker.snapshotOffset != null || !marker.frontier.equals("0");
      if (state == second) {
        boolean tooEarly = !second.complete || marker.epoch < failedEpoch || (marker.epoch == failedEpoch && marker.sequence.compareTo(failedSequence) < 0);
        if (tooEarly) {
          return Verdict.of("noted");
        }
        int changes = difference(shown.held, second.held);
        shown = second;
        second = null;
        tried.clear();
        return Verdict.of("replaced, " + changes + " changes");
      }
      tried.clear();
      return Verdict.of(swept > 0 ? "swept " + swept : "noted");
    }

    /** At most one reading per snapshot until proven; the second state goes on being filled, and an end will prove it. */
    private Verdict failed(Decoded marker) {
      if (marker.epoch > failedEpoch || (marker.epoch == failedEpoch && marker.sequence.compareTo(failedSequence) > 0)) {
        failedEpoch = marker.epoch;
        failedSequence = marker.sequence;
      }
      if (!tried.add(lastSnapshot)) {
        return Verdict.of("unproven");
      }
      second = new State(lastSnapshotOffset == null ? "" : lastSnapshot);
      return lastSnapshotOffset == null
          ? new Verdict("read again from the start", -1L)
          : new Verdict("read again from " + lastSnapshotOffset, lastSnapshotOffset);
    }

    private static int difference(Map<String, ObjectState> old, Map<String, ObjectState> now) {
      Set<String> keys = new HashSet<>(old.keySet());
      keys.addAll(now.keySet());
      int changes = 0;
      for (String key : keys) {
        ObjectState was = old.get(key);
        ObjectState is = now.get(key);
        changes += was == null || is == null || was.hash != is.hash ? 1 : 0;
      }
      return changes;
    }
  }

  // ---- one partition, and the streams that share it -----------------------------------------------------------------

  record Origin(Long offset, String snapshot) {}

  static final class StreamReplica {
    final Replica replica;
    long start;
    long partitions; // as the newest marker says

    StreamReplica(Origin origin) {
      replica = new Replica(origin.snapshot);
      start = origin.offset == null ? 0 : origin.offset;
    }
  }

  static final class StreamReplicas {
    final Map<String, StreamReplica> byStream = new TreeMap<>();
    private final Set<String> only;

    StreamReplicas(Map<String, Origin> origins, Set<String> only) {
      origins.forEach((stream, origin) -> byStream.put(stream, new StreamReplica(origin)));
      this.only = only;
    }

    long start() {
      return byStream.values().stream().mapToLong(one -> one.start).min().orElse(0);
    }

    Verdict apply(long offset, Decoded decoded) {
      StreamReplica one = byStream.get(decoded.stream);
      if (one == null) {
        if (!only.isEmpty() && !only.contains(decoded.stream)) {
          return Verdict.of("passed");
        }
        one = new StreamReplica(new Origin(null, ""));
        byStream.put(decoded.stream, one);
      }
      if (offset < one.start) {
        return Verdict.of("passed");
      }
      Verdict verdict = one.replica.apply(decoded);
      if (verdict.back != null) {
        one.start = 0;
      }
      one.partitions = decoded.isObject() ? one.partitions : decoded.partitions;
      return verdict;
    }

    boolean proven(String stream) {
      return byStream.containsKey(stream) && byStream.get(stream).replica.shown.proven;
    }
  }

  // ---- live: read to the end that the topics have now ---------------------------------------------------------------

  static final class Live {
    private static final Duration DEADLINE = Duration.ofSeconds(60);

    static boolean run(String bootstrap, List<String> topics) throws IOException {
      try {
        return read(bootstrap, topics);
      } catch (KafkaException error) {
        Throwable cause = error;
        while (cause.getCause() != null) {
          cause = cause.getCause();
        }
        System.err.println("kafka at " + bootstrap + " cannot be read: " + cause.getMessage());
        return false;
      }
    }

    private static boolean read(String bootstrap, List<String> topics) throws IOException {
      Properties settings = new Properties();
      settings.put("bootstrap.servers", bootstrap);
      settings.put("enable.auto.commit", "false");
      settings.put("auto.offset.reset", "earliest");
      settings.put("isolation.level", "read_committed");
      settings.put("allow.auto.create.topics", "false"); // a name that is wrong makes no topic
      Map<TopicPartition, StreamReplicas> all = new HashMap<>();
      long refused = 0;
      ByteArrayDeserializer bytes = new ByteArrayDeserializer();
      try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
        Set<String> missing = new TreeSet<>(topics);
        missing.removeAll(consumer.listTopics().keySet());
        if (!missing.isEmpty()) {
          System.err.println("topic " + String.join(", ", missing) + " is not there, or may not be seen: check the name, or grant READ on it");
          return false;
        }
        for (String topic : topics) {
          consumer.partitionsFor(topic).forEach(each -> all.put(new TopicPartition(topic, each.partition()), new StreamReplicas(Map.of(), Set.of())));
        }
        consumer.assign(all.keySet());
        consumer.seekToBeginning(all.keySet());
        Map<TopicPartition, Long> ends = consumer.endOffsets(all.keySet());
        long silentSince = System.nanoTime();
        while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
          var fetched = consumer.poll(Duration.ofMillis(500));
          silentSince = fetched.isEmpty() ? silentSince : System.nanoTime();
          if (System.nanoTime() - silentSince > DEADLINE.toNanos()) {
            System.err.println("no records of " + String.join(", ", topics) + " for " + DEADLINE.toSeconds() + " s: is kafka at " + bootstrap + " well?");
            return false;
          }
          for (TopicPartition place : fetched.partitions()) {
            refused += take(consumer, place, all.get(place), fetched.records(place), ends.get(place));
          }
        }
      }
      boolean proven = report(all) & whole(all);
      if (refused > 0) {
        System.err.println(refused + " records are not of this contract version");
      }
      if (System.out.checkError()) { // a closed pipe throws nothing
        System.err.println("nobody reads the output any more");
        return false;
      }
      return proven;
    }

    /** Whether each topic has the partitions that the markers of its streams speak of: records in others are not seen here. */
    private static boolean whole(Map<TopicPartition, StreamReplicas> all) {
      Set<String> lacking = new TreeSet<>();
      for (Map.Entry<TopicPartition, StreamReplicas> entry : all.entrySet()) {
        String topic = entry.getKey().topic();
        long there = all.keySet().stream().filter(place -> place.topic().equals(topic)).count();
        entry.getValue().byStream.forEach((stream, one) -> {
          if (one.partitions > there) {
            lacking.add("topic " + topic + " has " + there + " partition" + (there == 1 ? "" : "s") + ", the markers of stream " + stream + " say "
                + one.partitions + ": add them (kafka-topics.sh --alter --topic " + topic + " --partitions " + one.partitions + ")");
          }
        });
      }
      lacking.forEach(System.err::println);
      return lacking.isEmpty();
    }

    /** Apply what was fetched, up to where the partition has to be read again. */
    private static long take(
        KafkaConsumer<byte[], byte[]> consumer, TopicPartition place, StreamReplicas replicas, List<ConsumerRecord<byte[], byte[]>> records, long end) {
      long refused = 0;
      for (ConsumerRecord<byte[], byte[]> record : records) {
        if (record.offset() >= end) {
          break;
        }
        try {
          Map<String, byte[]> headers = new HashMap<>();
          for (Header header : record.headers()) {
            headers.put(header.key(), header.value());
          }
          Verdict verdict = replicas.apply(record.offset(), understand(record.key(), record.value(), headers));
          if (verdict.back != null) {
            consumer.seek(place, Math.max(0, verdict.back)); // out of reach: auto.offset.reset goes to the earliest there is
            break;
          }
        } catch (Refused error) {
          refused++;
        }
      }
      return refused;
    }

    private static boolean report(Map<TopicPartition, StreamReplicas> all) throws IOException {
      boolean proven = true;
      TreeMap<String, ObjectNode> lines = new TreeMap<>();
      for (Map.Entry<TopicPartition, StreamReplicas> entry : all.entrySet()) {
        for (Map.Entry<String, StreamReplica> one : entry.getValue().byStream.entrySet()) {
          Replica replica = one.getValue().replica;
          boolean holds = replica.shown.proven && replica.shown.complete && replica.second == null;
          proven &= holds;
          ObjectNode line = JSON.createObjectNode().put("stream", one.getKey()).put("topic", entry.getKey().topic());
          line.put("partition", entry.getKey().partition()).put("epoch", replica.shown.epoch).put("last", replica.shown.last);
          line.put("count", replica.shown.held.size()).put("digest", hex(replica.shown.digest)).put("proven", holds);
          lines.put(String.format("%s %s %06d", one.getKey(), entry.getKey().topic(), entry.getKey().partition()), line);
        }
      }
      for (ObjectNode line : lines.values()) {
        System.out.println(JSON.writeValueAsString(line));
      }
      return proven && !lines.isEmpty();
    }
  }

  // ---- vectors: tests/vectors/README.md -----------------------------------------------------------------------------

  static final class Vectors {
    static boolean run(Path directory) throws IOException {
      List<Path> files;
      try (var listed = Files.list(directory)) {
        files = listed.filter(path -> path.toString().endsWith(".json")).sorted().toList();
      }
      int failed = 0;
      for (Path file : files) {
        JsonNode vector = JSON.readTree(file.toFile());
        ObjectNode expected = (ObjectNode) vector.get("expect");
        ObjectNode found = judge(vector);
        List<String> differing = new ArrayList<>();
        // Compared as text: numbers that JSON does not tell apart are of different classes in jackson.
        expected.fieldNames().forEachRemaining(name -> {
          if (found.get(name) == null || !found.get(name).toString().equals(expected.get(name).toString())) {
            differing.add(name + "\n  expected " + expected.get(name) + "\n  found    " + found.get(name));
          }
        });
        failed += differing.isEmpty() ? 0 : 1;
        System.out.println((differing.isEmpty() ? "ok    " : "FAILS ") + file.getFileName() + " " + String.join("\n  ", differing));
      }
      System.out.println((files.size() - failed) + " of " + files.size() + " vectors pass");
      return failed == 0 && !files.isEmpty();
    }

    private static ObjectNode judge(JsonNode vector) {
      ObjectNode found = JSON.createObjectNode();
      ArrayNode shownOrigins = found.putArray("origins");
      ArrayNode verdicts = found.putArray("verdicts");
      ArrayNode state = found.putArray("state");
      Set<String> only = new HashSet<>();
      vector.get("streams").forEach(stream -> only.add(stream.asText()));
      Set<String> table = new TreeSet<>();
      List<Map<String, Origin>> byControl = vector.get("bootstrap").asText().equals("control") ? control(vector) : List.of();
      for (JsonNode partition : vector.get("partitions")) {
        int number = partition.get("partition").asInt();
        Map<String, Origin> origins = byControl.isEmpty() ? Map.of() : byControl.get(number);
        if (vector.get("bootstrap").asText().equals("heartbeats")) {
          origins = heartbeats(partition);
        }
        ObjectNode shown = shownOrigins.addObject();
        new TreeMap<>(origins).forEach((stream, origin) ->
            shown.putObject(stream).put("offset", origin.offset).put("snapshot", origin.snapshot));
        StreamReplicas replicas = new StreamReplicas(origins, only);
        read(partition, replicas, verdicts.addArray());
        replicas.byStream.forEach((stream, one) -> show(state.addObject(), stream, number, one.replica));
        table.addAll(table(partition));
      }
      ArrayNode keys = found.putArray("table");
      table.forEach(keys::add);
      return found;
    }

    private static void read(JsonNode partition, StreamReplicas replicas, ArrayNode verdicts) {
      Map<Long, JsonNode> records = new HashMap<>();
      partition.get("records").forEach(record -> records.put(record.get("offset").asLong(), record));
      Set<Long> lost = new HashSet<>();
      partition.get("lost").forEach(offset -> lost.add(offset.asLong()));
      long start = partition.get("start").asLong();
      long at = Math.max(start, replicas.start());
      while (at < partition.get("end").asLong()) {
        Verdict verdict = null;
        if (records.containsKey(at) && !lost.contains(at)) {
          ArrayNode line = verdicts.addArray().add(at);
          try {
            Decoded decoded = decode(records.get(at));
            verdict = replicas.apply(at, decoded);
            line.add(decoded.stream).add(verdict.word).add(!verdict.word.equals("passed") && replicas.proven(decoded.stream));
          } catch (Refused error) {
            line.add("").add("refused").add(false);
          }
        }
        if (verdict != null && verdict.back != null) {
          lost.clear();
          at = Math.max(start, verdict.back);
        } else {
          at++;
        }
      }
    }

    private static void show(ObjectNode line, String stream, int partition, Replica replica) {
      State shown = replica.shown;
      line.put("stream", stream).put("partition", partition).put("epoch", shown.epoch).put("last", shown.last);
      line.put("proven", shown.proven).put("rereading", replica.second != null);
      line.put("count", shown.held.size()).put("digest", hex(shown.digest));
      ObjectNode objects = line.putObject("objects");
      shown.held.forEach((key, held) ->
          objects.putObject(key).put("hash", hex(held.hash)).put("epoch", held.epoch).put("sequence", held.sequence));
    }

    /** What a table that ignores every header holds. */
    private static Collection<String> table(JsonNode partition) {
      Set<String> keys = new HashSet<>();
      for (JsonNode record : partition.get("records")) {
        if (record.get("key").isTextual() && record.get("value").isNull()) {
          keys.remove(record.get("key").asText());
        } else if (record.get("key").isTextual()) {
          keys.add(record.get("key").asText());
        }
      }
      return keys;
    }

    private static Decoded decode(JsonNode record) throws Refused {
      Map<String, byte[]> headers = new HashMap<>();
      record.get("headers").properties().forEach(header -> headers.put(header.getKey(), bytes(header.getValue())));
      return understand(bytes(record.get("key")), bytes(record.get("value")), headers);
    }

    private static byte[] bytes(JsonNode data) {
      if (data.isNull()) {
        return null;
      }
      return data.isObject() ? Base64.getDecoder().decode(data.get("base64").asText()) : data.asText().getBytes(StandardCharsets.UTF_8);
    }

    /** The newest heartbeat of the highest epoch, by stream. */
    private static Map<String, Origin> heartbeats(JsonNode partition) {
      Map<String, Decoded> newest = new HashMap<>();
      for (JsonNode record : partition.get("records")) {
        try {
          Decoded decoded = decode(record);
          Decoded held = newest.get(decoded.stream);
          boolean newer = held == null || decoded.epoch > held.epoch || (decoded.epoch == held.epoch && decoded.sequence.compareTo(held.sequence) > 0);
          if (decoded.kind == Kind.HEARTBEAT && newer) {
            newest.put(decoded.stream, decoded);
          }
        } catch (Refused error) {
          // counted when it is read
        }
      }
      Map<String, Origin> origins = new HashMap<>();
      newest.forEach((stream, beat) -> origins.put(stream, new Origin(beat.snapshotOffset, beat.snapshot)));
      return origins;
    }

    /** The newest claim under one key of the control topic: of a stream, or of a part as `pods%0/4`. */
    private static final class Claimed {
      final Map<String, Long> instances = new HashMap<>();
      long offset = -1;
      JsonNode claim;
      JsonNode index;

      boolean names(int partition) {
        JsonNode partitions = claim == null ? null : claim.get("partitions");
        return claim != null && (partitions == null || contains(partitions, partition));
      }

      /** Where a partition starts: the index record of this claim's epoch, else the `from` of the claim, else the start. */
      Origin origin(int partition, int partitions, long epochBase) {
        boolean counts = index != null && !index.isNull() && index.get("epoch").asLong() == epochBase + offset;
        if (counts && covers(partitions)) {
          for (JsonNode each : index.get("partitions")) {
            if (each.get("partition").asInt() == partition) {
              return new Origin(each.get("begin").asLong(), index.get("snapshot").asText());
            }
          }
        }
        JsonNode from = claim.get("from");
        JsonNode begin = from == null || from.isNull() ? null : from.get("begin");
        String name = Integer.toString(partition);
        if (begin != null && begin.isArray() && begin.size() == partitions) {
          return new Origin(begin.get(partition).asLong(), from.get("snapshot").asText());
        }
        if (begin != null && begin.isObject() && begin.has(name)) {
          return new Origin(begin.get(name).asLong(), from.get("snapshot").get(name).asText());
        }
        return new Origin(null, "");
      }

      /** Whether the index record is of exactly the partitions that the claim names. */
      private boolean covers(int partitions) {
        Set<Integer> listed = new HashSet<>();
        index.get("partitions").forEach(each -> listed.add(each.get("partition").asInt()));
        Set<Integer> claimed = new HashSet<>();
        for (int partition = 0; partition < partitions; partition++) {
          if (names(partition)) {
            claimed.add(partition);
          }
        }
        return listed.equals(claimed) && index.get("partitions").size() == claimed.size();
      }

      private static boolean contains(JsonNode partitions, int partition) {
        for (JsonNode each : partitions) {
          if (each.asInt() == partition) {
            return true;
          }
        }
        return false;
      }
    }

    /** Commas and opening brackets in a control record, wherever they are. */
    private static final int CONTROL_VALUES_MAX = 700_000;

    private static final Pattern CONTROL_KEY = Pattern.compile("(stream|claim|snapshot)/([^%]+)(?:%(\\d+)/(\\d+))?");

    /** By partition and stream: where the newest claim that names the partition has it start. Other records are ignored. */
    private static List<Map<String, Origin>> control(JsonNode vector) {
      Map<String, JsonNode> described = new HashMap<>();
      Map<String, Map<String, Claimed>> claims = new HashMap<>();
      for (JsonNode record : vector.get("control")) {
        Matcher key = CONTROL_KEY.matcher(record.get("key").asText());
        boolean known = key.matches();
        boolean ofPart = known && key.group(3) != null;
        if (!known || (ofPart && (key.group(1).equals("stream") || Integer.parseInt(key.group(3)) >= Integer.parseInt(key.group(4))))) {
          continue; // a release, or a kind or key of a later version: nothing for a reader
        }
        String text = record.get("value").asText();
        if (text.chars().filter(each -> ",[{".indexOf(each) >= 0).count() > CONTROL_VALUES_MAX) {
          continue; // about as many values: they are not decoded
        }
        String stream = key.group(2);
        JsonNode value = parse(record.get("value"));
        if (key.group(1).equals("stream")) {
          described.put(stream, value);
          continue;
        }
        String writer = ofPart ? key.group(3) + "/" + key.group(4) : "";
        Map<String, Claimed> ofStream = claims.computeIfAbsent(stream, name -> new HashMap<>());
        Claimed claimed = ofStream.computeIfAbsent(writer, name -> new Claimed());
        if (key.group(1).equals("snapshot")) {
          claimed.index = value;
        } else if (value.isNull()) {
          ofStream.remove(writer);
        } else {
          long first = claimed.instances.computeIfAbsent(value.get("instance").asText(), name -> record.get("offset").asLong());
          if (first > claimed.offset) {
            claimed.offset = first;
            claimed.claim = value;
          }
        }
      }
      List<Map<String, Origin>> origins = new ArrayList<>();
      vector.get("partitions").forEach(partition -> origins.add(new HashMap<>()));
      described.forEach((stream, description) -> {
        if (description.isNull()) {
          return;
        }
        int partitions = description.get("partitions").asInt();
        long epochBase = description.get("epochBase").asLong();
        for (int partition = 0; partition < partitions; partition++) {
          Claimed newest = null;
          for (Claimed each : claims.getOrDefault(stream, Map.of()).values()) {
            newest = each.names(partition) && (newest == null || each.offset > newest.offset) ? each : newest;
          }
          Origin origin = newest == null ? new Origin(null, "") : newest.origin(partition, partitions, epochBase);
          origins.get(partition).put(stream, origin);
        }
      });
      return origins;
    }

    private static JsonNode parse(JsonNode text) {
      try {
        return text.isNull() ? text : JSON.readTree(text.asText());
      } catch (IOException error) {
        throw new IllegalArgumentException(error);
      }
    }
  }
}
