import io.zonky.test.db.postgres.embedded.EmbeddedPostgres;
import java.sql.DriverManager;
import java.util.TreeMap;

/** A PostgreSQL for a sink to write to: `serve PORT` until its input ends; `read PORT` prints what the table `pods` holds. */
class JdbcTable {
    static final String ROWS = "select object_key, object::json->'metadata'->>'name', object::json->'status'->>'phase' from pods";

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        if (arguments[0].equals("serve")) {
            try (var database = EmbeddedPostgres.builder().setPort(port).start()) {
                System.out.println("serves on " + database.getPort());
                Thread.currentThread().join();
            }
            return;
        }
        var held = new TreeMap<String, String>();
        try (var connection = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/postgres", "postgres", "postgres");
            var there = connection.getMetaData().getTables(null, null, "pods", null)) {
            if (there.next()) {
                try (var rows = connection.createStatement().executeQuery(ROWS)) {
                    while (rows.next()) {
                        held.put(rows.getString(1), "[" + quoted(rows.getString(2)) + "," + quoted(rows.getString(3)) + "]");
                    }
                }
            }
        }
        var said = new StringBuilder();
        held.forEach((key, row) -> said.append(said.isEmpty() ? "" : ",").append(quoted(key)).append(":").append(row));
        System.out.println("{" + said + "}");
    }

    /** Names of Kubernetes and phases of pods hold nothing that JSON escapes. */
    static String quoted(String text) {
        return text == null ? "null" : '"' + text + '"';
    }
}
