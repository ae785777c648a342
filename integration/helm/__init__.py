"""The chart as Helm makes it: `program` has Helm at hand, `chart` renders and checks charts/coil with it."""
