-- What determined how long the job took: which kind of work, on which rank?
-- Needs: profiler traces.
select kind, rank, n_pieces, round(duration_ns / 1e6, 3) as on_path_ms, round(share_pct, 1) as share_pct,
       main_name, round(main_ns / 1e6, 3) as main_ms
from path_summary
order by duration_ns desc, rank
limit 20
