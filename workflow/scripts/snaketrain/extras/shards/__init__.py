"""Prepares large data in several jobs, `data.shards`: each prepares some of the files, and `prepare_data` joins what they have made."""
