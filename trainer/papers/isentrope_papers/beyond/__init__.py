"""What neither paper shows: how good predictions are in every setting, held entropies, alarms."""
