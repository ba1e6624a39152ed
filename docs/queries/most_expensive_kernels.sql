-- Which kernels are the most expensive, over all ranks?
-- Needs: profiler traces.
select name, type, count(*) as n_ranks, sum(n_kernels) as n_kernels, round(sum(total_ns) / 1e6, 3) as total_ms,
       round(100 * sum(total_ns) / sum(sum(total_ns)) over (), 1) as share_pct,
       round(sum(total_ns) / sum(n_kernels) / 1e3, 1) as mean_us, round(max(max_ns) / 1e3, 1) as longest_us
from kernel_breakdown
group by name, type
order by total_ms desc, name
limit 20
