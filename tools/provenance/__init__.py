"""check_provenance: what really runs, against what was declared."""
