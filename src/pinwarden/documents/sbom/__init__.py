"""Bills of materials: a lock and its closures in the formats that other tools read."""
