"""Room 4: order and continuity. Changes become positioned records, snapshots run between live events, receipts move the frontier."""
