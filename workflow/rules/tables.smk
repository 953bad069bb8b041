# Tables of accuracy, fairness and cost, as CSV; those of accuracy as Markdown too.
rule tables:
    input:
        runs=expand(
            "<results>/runs/{job}/{frame}.parquet",
            job=JOBS[""],
            frame=list(results.COLUMNS),
        ),
        paper1=HERE / "config/paper_table1.csv",
        paper2=HERE / "config/paper_table2.csv",
        source=SOURCE / "tables.py",
    output:
        table1=report(
            "<results>/tables/table1.csv",
            caption="../report/table1.rst",
            category="Tables",
            labels={"table": "1", "shows": "accuracy"},
        ),
        table2=report(
            "<results>/tables/table2.csv",
            caption="../report/table2.rst",
            category="Tables",
            labels={"table": "2", "shows": "accuracy by lambda"},
        ),
        sweeps=report(
            "<results>/tables/sweeps.csv",
            caption="../report/sweeps.rst",
            category="Tables",
            labels={"table": "sweeps", "shows": "accuracy by swept value"},
        ),
        fairness=report(
            "<results>/tables/fairness.csv",
            caption="../report/fairness.rst",
            category="Tables",
            labels={"table": "fairness", "shows": "accuracy over clients"},
        ),
        cost=report(
            "<results>/tables/cost.csv",
            caption="../report/cost.rst",
            category="Tables",
            labels={"table": "cost", "shows": "gradients and numbers sent"},
        ),
        equal_gradients=report(
            "<results>/tables/equal_gradients.csv",
            caption="../report/equal_gradients.rst",
            category="Tables",
            labels={"table": "equal gradients", "shows": "accuracy at equal cost"},
        ),
        diverged=report(
            "<results>/tables/diverged.csv",
            caption="../report/diverged.rst",
            category="Tables",
            labels={"table": "diverged", "shows": "runs that diverged"},
        ),
        mu=report(
            "<results>/tables/mu.csv",
            caption="../report/mu.rst",
            category="Tables",
            labels={"table": "mu", "shows": "chosen K and the mu that choose it"},
        ),
        markdown1="<results>/tables/table1.md",
        markdown2="<results>/tables/table2.md",
    log:
        "<results>/logs/tables.log",
    benchmark:
        "<results>/benchmarks/tables.tsv"
    conda:
        "../../environment.yml"
    params:
        runs=RUNS[tables.MAIN],
    message:
        "Writing tables."
    script:
        "../scripts/tables.py"
