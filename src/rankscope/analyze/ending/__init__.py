"""How the job ended: which process ended first, and what it and the others were doing then."""
