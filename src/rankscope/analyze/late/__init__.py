"""Why a rank is late: what it did in the time before its late calls that its peers did not do."""
