-- Which rank do the others wait for, how often is it last, and what does that cost them?
-- Needs: profiler traces of several ranks.
select rank, group_name, n_matches, n_last, round(last_pct, 1) as last_pct,
       round(mean_lateness_ns / 1e6, 3) as mean_late_ms, round(max_lateness_ns / 1e6, 3) as max_late_ms,
       round(caused_wait_ns / 1e6, 3) as others_waited_ms
from arrivals
order by caused_wait_ns desc, rank
limit 20
