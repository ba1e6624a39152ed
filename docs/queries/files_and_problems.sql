-- What was read, what was not, and why?
-- Needs: any capture.
select coalesce(source, 'unknown') as source, status, problem, count(*) as n_files,
       sum(n_bytes) as n_bytes, min(path) as first_file, any_value(hint) as hint
from files
group by source, status, problem
order by status = 'read', n_files desc, source
