-- How much memory did each rank use at most, in which step and operator, and does it grow?
-- Needs: profiler traces with profile_memory=True.
select rank, device_type, device, round(peak_bytes / 1e9, 3) as peak_gb, round(reserved_bytes / 1e9, 3) as reserved_gb,
       peak_step, coalesce(peak_top_op, peak_op) as at_operator,
       round(growth_bytes / 1e6, 3) as growth_mb_per_step, n_grown, n_steps
from memory_peaks
order by device_type = 'cpu', peak_bytes desc, rank
limit 20
