"""A cache of the weight service for one site: every blob crosses the slow line once."""
