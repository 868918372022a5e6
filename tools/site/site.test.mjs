// Tests of the built site.
import assert from 'node:assert'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import path from 'node:path'
import test from 'node:test'
import { pathToFileURL } from 'node:url'
import MiniSearch from 'minisearch'
import { indexOptions, searchOptions } from './search.mjs'

const site = process.env.SITE_OUT

// files returns the files of a directory with that extension, relative to the site.
function files(extension, dir = '') {
  return readdirSync(path.join(site, dir), { withFileTypes: true }).flatMap((entry) => {
    const name = path.posix.join(dir, entry.name)
    return entry.isDirectory() ? files(extension, name) : name.endsWith(extension) ? [name] : []
  })
}

const pages = new Map(files('.html').map((name) => [name, readFileSync(path.join(site, name), 'utf8')]))

test('links and anchors of the site exist', () => {
  const broken = []
  let links = 0
  for (const [name, html] of pages) {
    for (const [, href] of html.matchAll(/<a [^>]*?href="([^"]+)"/g)) {
      if (/^[a-z]+:/.test(href)) continue
      links++
      const url = new URL(href.replaceAll('&amp;', '&'), `http://site/${name}`)
      const target = decodeURIComponent(url.pathname.slice(1)).replace(/(^|\/)$/, '$1index.html')
      const file = [target, target + '.html', path.posix.join(target, 'index.html')].find((file) => pages.has(file))
      const anchor = decodeURIComponent(url.hash.slice(1))
      if (!file && !existsSync(path.join(site, target))) broken.push(`${name}: ${href}`)
      else if (file && anchor && !pages.get(file).includes(`id="${anchor}"`)) broken.push(`${name}: ${href}: no such heading`)
    }
  }
  assert.ok(links > 500, `only ${links} links were found`)
  assert.deepStrictEqual(broken, [])
})

test('each page is in the sidebar', () => {
  const sidebar = pages.get('index.html')
  const orphans = [...pages.keys()].filter((name) => !['index.html', '404.html'].includes(name))
    .filter((name) => !sidebar.includes(`href="/${name}"`))
  assert.deepStrictEqual(orphans, [])
})

test('the site loads nothing from elsewhere', () => {
  const loads = [...pages].flatMap(([name, html]) => [...html.matchAll(/<(?:script|link|img|iframe)[^>]*?(?:src|href)="((?:https?:)?\/\/[^"]+)"/g)].map(([, url]) => `${name}: ${url}`))
  for (const name of files('.css')) {
    for (const [url] of readFileSync(path.join(site, name), 'utf8').matchAll(/(?:url\(["']?|@import ["'])(?:https?:)?\/\/[^)"']+/g)) loads.push(`${name}: ${url}`)
  }
  assert.deepStrictEqual(loads, [])
})

// The tasks are those of docs/README.md and docs/troubleshooting.md, in the words of users.
// A page that answers must be among the first three pages of the result, for all but one.
test('search finds the tasks of users', async () => {
  const chunks = path.join(site, 'assets/chunks')
  const index = readdirSync(chunks).find((name) => name.startsWith('@localSearchIndexroot.'))
  const search = MiniSearch.loadJSON((await import(pathToFileURL(path.join(chunks, index)))).default, { ...indexOptions, searchOptions })
  const tasks = JSON.parse(readFileSync(new URL('tasks.json', import.meta.url), 'utf8'))
  assert.ok(tasks.length >= 20)
  const missed = tasks.flatMap(({ words, pages }) => {
    const found = [...new Set(search.search(words).map(({ id }) => id.replace(/^\//, '').replace(/#.*$/, '').replace(/\.html$/, '.md')))]
    return found.slice(0, 3).some((page) => pages.includes(page)) ? [] : [`${words}: want ${pages.join(' or ')}; got ${found.slice(0, 5).join(', ')}`]
  })
  assert.ok(missed.length <= 1, missed.join('\n'))
})
