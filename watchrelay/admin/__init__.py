"""What an operator's command does and then ends. In: settings, stream ids. Out: results, answers
and documents as values; records for a retirement. Knows nothing of the command line."""
