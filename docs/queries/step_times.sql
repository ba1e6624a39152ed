-- How long did each step take, and which rank was slowest?
-- Needs: profiler traces with steps.
select step, count(*) as n_ranks, round(min(duration_ns) / 1e6, 3) as fastest_ms,
       round(median(duration_ns) / 1e6, 3) as median_ms, round(max(duration_ns) / 1e6, 3) as slowest_ms,
       arg_max(rank, duration_ns) as slowest_rank
from steps
group by step
order by step
